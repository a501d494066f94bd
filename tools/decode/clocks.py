"""Seconds on a device, and the two rates that floors are taken against."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

# Long enough to fill a device and larger than its caches.
COPIED, MATRIX = 4 << 30, 8192
COPIED_ON_CPU, MATRIX_ON_CPU = 64 << 20, 512


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], object], device: torch.device, reps: int) -> float:
    """The median of a call's seconds, each waited for, after one that warms up."""
    run()
    wait_for(device)
    found = []
    for _ in range(reps):
        began = time.perf_counter()
        run()
        wait_for(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def copy_rate(device: torch.device) -> float:
    """Bytes read and written a second by a large copy."""
    size = COPIED if device.type == "cuda" else COPIED_ON_CPU
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device, 10)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large product of random numbers."""
    size = MATRIX if device.type == "cuda" else MATRIX_ON_CPU
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    out = torch.empty_like(a)
    return 2 * size**3 / seconds_of(lambda: torch.mm(a, b, out=out), device, 10)
