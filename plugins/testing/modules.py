"""A plugin's module, loaded as `tensorfold` loads it."""

from __future__ import annotations

from types import ModuleType

from tensorfold.plugins.manager import Installed, Source, discover
from tensorfold.plugins.testing.driving import PromiseBroken


def check_plugin(module: ModuleType) -> Installed:
    """What the module brings through the seam, it alone. Raises `PromiseBroken` where it fails, or
    claims one of its own names twice."""
    found = discover([Source(module.__name__, lambda: module)])
    for failure in found.failures:
        raise PromiseBroken(f"plugin {failure.plugin}: {failure.reason}")
    clashes = (
        found.backend_clashes,
        found.family_clashes,
        found.type_clashes,
        found.drafter_clashes,
    )
    for name in (name for names in clashes for name in names):
        raise PromiseBroken(f"plugin {module.__name__} claims {name!r} twice")
    return found
