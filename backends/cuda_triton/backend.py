"""The CUDA engine: this backend's ops behind core's torch engine, captured and compiled."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from tensorfold.backends.cuda_triton import library
from tensorfold.backends.cuda_triton.ahead import compile_ahead, start_pool
from tensorfold.backends.cuda_triton.ranks import connect
from tensorfold.backends.cuda_triton.table import candidates
from tensorfold.core.backend_api import EngineOrder, Place, Progress, no_progress
from tensorfold.core.engine.compile import compile_layer, library_ops
from tensorfold.core.engine.graphs import Queued
from tensorfold.core.engine.open_engine import Compile, Device, open_torch_engine
from tensorfold.core.engine.optable import Candidates
from tensorfold.core.engine.packing import Powers
from tensorfold.core.engine.runner import Rounds, Runner
from tensorfold.core.engine.source import format_of
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.core.ops import SPECS, Ops
from tensorfold.core.settings import Settings

NAMESPACE = "tensorfold_cuda_triton"
# Two: a size of one is a shape of its own to a compiler.
TILE = 2
WARP = 32
FORMATS = (torch.bfloat16, torch.float32)
# What a forward may take beside weights and state, in bytes.
SPARE = 4 << 30
# Where compilers keep what they made, inside the folder for compiled artifacts.
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def graph(ops: Ops, ranks: int) -> tuple[Ops, Compile]:
    return library_ops(NAMESPACE, ops, ranks), compile_layer


def runner(device: torch.device, rounds: Rounds) -> Runner:
    buckets = Powers(
        tile=TILE,
        most_rows=rounds.most_rows,
        most_window=rounds.most_window,
        prompts=rounds.captured,
    )
    return Queued(device, buckets, captured=rounds.captured)


def gpu_of(place: Place | None) -> torch.device:
    """The GPU of a rank, the current one from now on. Raises `StartError` where there is none."""
    index, count = 0 if place is None else place.local, torch.cuda.device_count()
    if index >= count:
        raise StartError(
            f"rank {index} of this host has no GPU: there {'is' if count == 1 else 'are'} {count}"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def keep_compiled(settings: Settings) -> None:
    """Have the compilers keep what they make between starts, where nothing else was told."""
    folder = Path(settings.cache_dir) if settings.cache_dir else Path.home() / ".cache/tensorfold"
    # Torch puts its own folder into the environment once it is imported: nobody told that one.
    untold = {None, default_cache_dir()}
    for name, inside in CACHES.items():
        if os.environ.get(name) in untold:
            os.environ[name] = str(folder / inside)


def free_bytes(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def ahead(device: torch.device, rehearse: Callable[[], None], progress: Progress) -> None:
    major, minor = torch.cuda.get_device_capability(device)
    compile_ahead(
        rehearse,
        ("cuda", 10 * major + minor, WARP),
        lambda done, total: progress("compiling kernels", done, total),
    )


def device_of(order: EngineOrder) -> Device:
    """Raises `StartError` where kernels are missing."""
    found = candidates()
    missing = [spec.name for spec in SPECS if spec.name not in found]
    if missing:
        raise StartError(f"cuda-triton has no kernel for {', '.join(missing)}")
    keep_compiled(order.settings)
    start_pool()
    device = gpu_of(order.place)
    major, minor = torch.cuda.get_device_capability(device)
    return Device(
        backend="cuda-triton",
        candidates=found,
        device=device,
        dtype=format_of(order, FORMATS),
        tile=TILE,
        free_bytes=partial(free_bytes, device),
        spare_bytes=SPARE,
        # What is compiled follows the kind of GPU and the compiler.
        bits={"capability": f"{major}.{minor}", "triton": triton_version()},
        graph=graph,
        connect=partial(connect, device),
        runner=partial(runner, device),
        compiles=True,
        ahead=partial(ahead, device),
    )


def free_candidates() -> Candidates:
    """Without a promise: for benches that tell what exactness costs."""
    own = library.candidates()
    return {
        name: (own[name], *choices) if name in own else choices
        for name, choices in candidates().items()
    }


def triton_version() -> str:
    import triton

    return str(triton.__version__)


def open_engine(order: EngineOrder) -> TorchEngine:
    """Raises `StartError` for whatever keeps the engine from opening."""
    return open_torch_engine(order, device_of(order))


def check(report: Callable[[str], None]) -> bool:
    """The op contract, for every form of every op."""
    from tensorfold.core.engine.contract_check import check_backend

    start_pool()
    formats = (torch.float32, torch.bfloat16)
    device = gpu_of(None)
    return check_backend(
        "cuda-triton",
        candidates(),
        device,
        report,
        formats,
        lambda rehearse: ahead(device, rehearse, no_progress),
    )
