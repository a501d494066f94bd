"""The CUDA engine: this backend's ops behind core's torch engine."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tensorfold.backends.cuda_triton.table import candidates
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine.compile import compile_layer, library_ops
from tensorfold.core.engine.open_engine import Compile, Device, open_torch_engine
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.core.ops import SPECS, Ops

NAMESPACE = "tensorfold_cuda_triton"
DEVICE = torch.device("cuda", 0)


def graph(ops: Ops) -> tuple[Ops, Compile]:
    return library_ops(NAMESPACE, ops), compile_layer


def open_engine(order: EngineOrder) -> TorchEngine:
    """Raises `StartError` for whatever keeps the engine from opening."""
    missing = [spec.name for spec in SPECS if spec.name not in candidates()]
    if missing:
        raise StartError(f"cuda-triton has no kernel for {', '.join(missing)}")
    free_bytes, _ = torch.cuda.mem_get_info(DEVICE)
    device = Device(
        backend="cuda-triton",
        candidates=candidates(),
        device=DEVICE,
        dtype=torch.float32,
        tile=1,
        free_bytes=free_bytes,
        bits={"gpu": torch.cuda.get_device_name(DEVICE)},
        graph=graph,
    )
    return open_torch_engine(order, device)


def check(report: Callable[[str], None]) -> bool:
    """The op contract, for every form of every op."""
    from tensorfold.core.engine.contract_check import check_backend

    formats = (torch.float32, torch.bfloat16)
    return check_backend("cuda-triton", candidates(), DEVICE, report, formats)
