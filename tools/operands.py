"""Operands of ops at true widths, and what a call must at least move and compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Args = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Maker:
    """Random operands on a device; `dtype` is the engine's format, `wide` arguments float32."""

    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator

    def normal(self, *shape: int, scale: float = 1.0, wide: bool = False) -> Tensor:
        dtype = torch.float32 if wide else self.dtype
        out = torch.empty(shape, dtype=dtype, device=self.device)
        return out.normal_(0, scale, generator=self.generator)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def whole(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.generator, device=self.device)

    def picks(self, rows: int, experts: int, top: int) -> Tensor:
        scores = self.uniform(rows, experts)
        return scores.argsort(-1)[:, :top].sort(-1).values

    def unit(self, *shape: int) -> Tensor:
        return F.normalize(self.normal(*shape, wide=True), dim=-1).to(self.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One op at one model's width. `make` gives its operands for a number of rows, `shared` which
    of them are weights (timing turns through copies of these), `flops` the products' operations.

    `most` is the largest number of rows that a model calls it with. `plain` makes of the operands
    those of the same sum in one run. `peer` is torch's own way to the same result. `bytes` are the
    fewest that move: by default each operand and result once.
    """

    op: str
    label: str
    make: Callable[[Maker, int], Args]
    shared: tuple[int, ...] = ()
    flops: Callable[[Args], float] = lambda args: 0.0
    bytes: Callable[[Args, tuple[Tensor, ...]], float] | None = None
    peer: Callable[[Args], Any] | None = None
    plain: Callable[[Args], Args] | None = None
    most: int = 1 << 20


def size(tensors: Any) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor)))


def moved(point: Point, args: Args, found: tuple[Tensor, ...]) -> float:
    """The fewest bytes of one call."""
    return point.bytes(args, found) if point.bytes else size(args) + size(found)
