"""The CPU engine: this backend's ops behind core's torch engine, in float32."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from tensorfold.backends.cpu_reference.products import BY_FOUR, TILES, UNPADDED
from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine import checks
from tensorfold.core.engine.compile import compile_layer, library_ops
from tensorfold.core.engine.gloo import connect
from tensorfold.core.engine.open_engine import Compile, Device, open_torch_engine
from tensorfold.core.engine.optable import Candidates
from tensorfold.core.engine.source import format_of
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.ops import Ops

NAMESPACE = "tensorfold_cpu_reference"


def free_bytes() -> int:
    """Memory that the system can still give, in bytes; where it does not tell, all it has."""
    try:
        told = Path("/proc/meminfo").read_text("ascii")
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = next(line for line in told.splitlines() if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024


def graph(ops: Ops, ranks: int) -> tuple[Ops, Compile]:
    return library_ops(NAMESPACE, ops, ranks), compile_layer


def device_of(order: EngineOrder, *, verdict: Callable[..., bool] = checks.holds) -> Device:
    """`verdict` judges a library product on a call; the load-time check unless a test says."""
    # Few rows of a small model gain nothing from more threads, and lose much on a busy machine.
    torch.set_num_threads(order.settings.threads)
    return Device(
        backend="cpu-reference",
        candidates=candidates(),
        device=torch.device("cpu"),
        dtype=format_of(order, (torch.float32,)),
        tile=BY_FOUR.tile,
        free_bytes=free_bytes,
        # The library's kernels follow the processor and the number of threads.
        bits={
            "threads": torch.get_num_threads(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
        },
        graph=graph,
        connect=connect,
        verdict=verdict,
    )


def free_candidates() -> Candidates:
    """Without a promise: for benches that tell what exactness costs."""
    return candidates((UNPADDED, TILES))


def open_engine(order: EngineOrder, *, verdict: Callable[..., bool] = checks.holds) -> TorchEngine:
    return open_torch_engine(order, device_of(order, verdict=verdict))


def check(report: Callable[[str], None]) -> bool:
    """The op contract, for both forms of every op."""
    from tensorfold.core.engine.contract_check import check_backend

    return check_backend("cpu-reference", candidates(), torch.device("cpu"), report)
