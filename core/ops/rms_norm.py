"""Root-mean-square norm over the last axis, with or without a weight."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal


def reference(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps), then times the weight, over the last axis."""
    normed = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def shape(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for size in ((256,), (64,), (4, 64), (4, 16), (1024,), (100,)):
        x = normal(generator, 328, *size)
        weight = normal(generator, size[-1]) if len(size) == 1 else None
        args = {"x": x, "weight": weight, "eps": 1e-5}
        found.append(Case(name="x".join(map(str, size)), args=args, rows=("x",)))
    return found


OP = OpSpec(
    name="rms_norm",
    schema="(Tensor x, Tensor? weight, float eps) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
)
