"""The backend as the plugin seam sees it; imports no torch until an engine is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tensorfold.backends.cuda_triton.driver import lacking, num_gpus
from tensorfold.core.backend_api import Backend, EngineOrder
from tensorfold.plugins import hookimpl

if TYPE_CHECKING:
    from tensorfold.core.engine_api import Engine


class CudaTriton:
    """Triton kernels, on one NVIDIA GPU a rank."""

    name = "cuda-triton"
    summary = "Triton kernels on NVIDIA GPUs, one a rank, row-exact"
    needs_family = True

    def unusable(self) -> str | None:
        return lacking()

    def devices(self) -> int:
        return num_gpus()

    def bundled(self) -> Path | None:
        return None

    def engine(self, order: EngineOrder) -> Engine:
        from tensorfold.backends.cuda_triton.backend import open_engine

        return open_engine(order)

    def check(self, report: Callable[[str], None]) -> bool:
        from tensorfold.backends.cuda_triton.backend import check

        return check(report)


BACKEND = CudaTriton()


@hookimpl
def register_backends() -> list[Backend]:
    return [BACKEND]
