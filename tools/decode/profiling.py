"""Where a device's time goes, by kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile


class Kernel(NamedTuple):
    """A kernel by name: its runs and seconds in all."""

    name: str
    runs: int
    seconds: float


def kernels(run: Callable[[], object]) -> list[Kernel]:
    """The kernels of a call, the longest first; empty without a CUDA device."""
    if not torch.cuda.is_available():
        run()
        return []
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    found = [
        Kernel(event.key, event.count, event.self_device_time_total / 1e6)
        for event in profiled.key_averages()
        if event.self_device_time_total > 0
    ]
    return sorted(found, key=lambda kernel: -kernel.seconds)


# Modules whose kernels choose what rows attend to.
INDEX = ("index_scores", "best", "pick_tokens", "pick_rows")


def index_kernels() -> frozenset[str]:
    """Names of the index's own kernels; none where the backend that has them cannot be loaded."""
    if find_spec("triton") is None:
        return frozenset()
    found = set()
    for name in INDEX:
        module = import_module(f"tensorfold.backends.cuda_triton.kernels.{name}")
        # A kernel is what triton made of a function: it can be launched over a grid.
        found |= {own for own, value in vars(module).items() if hasattr(value, "run")}
    return frozenset(found)


def share_of(profiled: Sequence[Kernel], names: frozenset[str]) -> float:
    """The part of the time that kernels of these names took."""
    own = sum(kernel.seconds for kernel in profiled if kernel.name in names)
    return own / sum(kernel.seconds for kernel in profiled)
