"""The backend as the plugin seam sees it; imports no torch until an engine is opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tensorfold.core.backend_api import Backend, EngineOrder
from tensorfold.plugins import hookimpl

if TYPE_CHECKING:
    from tensorfold.core.engine_api import Engine


class CpuReference:
    """Every op on the CPU in float32, row-exact."""

    name = "cpu-reference"
    summary = "every op on the CPU in float32, row-exact"
    needs_family = True

    def unusable(self) -> str | None:
        return None if find_spec("torch") else "torch is not installed"

    def bundled(self) -> Path | None:
        return None

    def engine(self, order: EngineOrder) -> Engine:
        from tensorfold.backends.cpu_reference.backend import open_engine

        return open_engine(order)

    def check(self, report: Callable[[str], None]) -> bool:
        from tensorfold.backends.cpu_reference.backend import check

        return check(report)


BACKEND = CpuReference()


@hookimpl
def register_backends() -> list[Backend]:
    return [BACKEND]
