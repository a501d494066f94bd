"""What the project itself brings through the seam beside its backends and families."""

from __future__ import annotations

from collections.abc import Sequence

from tensorfold.core.copies import Copies
from tensorfold.core.drafter_api import HostDrafter
from tensorfold.plugins.hookspecs import hookimpl


@hookimpl
def register_drafters() -> Sequence[HostDrafter]:
    return [Copies()]
