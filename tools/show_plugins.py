"""What is installed, what works on this machine, and why the rest does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorfold.plugins.choose import standing
from tensorfold.plugins.manager import Installed, discover
from tensorfold.tools.arguments import Parser


def lines(installed: Installed) -> Iterator[str]:
    """One line a backend, family, drafter, clash and failed plugin."""
    for name, backend in sorted(installed.backends.items()):
        why = standing(backend.value)
        state = "usable" if why is None else f"cannot run here: {why}"
        yield f"backend  {name}  ({state})  {backend.value.summary}  [plugin {backend.plugin}]"
    for name, family in sorted(installed.families.items()):
        types = ", ".join(family.value.model_types)
        yield f"family   {name}  serves model_type {types}  [plugin {family.plugin}]"
    for name, drafter in sorted(installed.drafters.items()):
        yield f"drafter  {name}  {drafter.value.summary}  [plugin {drafter.plugin}]"
    clashes = {
        "backend": installed.backend_clashes,
        "family": installed.family_clashes,
        "model_type": installed.type_clashes,
        "drafter": installed.drafter_clashes,
    }
    for kind, names in clashes.items():
        for name, plugins in names.items():
            yield f"clash    {kind} {name} is claimed by {' and '.join(plugins)}"
    for failure in installed.failures:
        yield f"failed   plugin {failure.plugin}: {failure.reason}"


def main(arguments: Sequence[str]) -> int:
    Parser(
        prog="tensorfold plugins",
        description="List backends, families, drafters and failed plugins.",
    ).parse_args(arguments)
    for line in lines(discover()):
        print(line)
    return 0
