"""Layer norm over the last axis, with weight and bias."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal


def reference(x_RD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias, [R, D]."""
    centred = x_RD - x_RD.mean(-1, keepdim=True)
    spread = torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)
    return centred / spread * weight_D + bias_D


def shape(x_RD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x_RD)


def cases(generator: torch.Generator) -> list[Case]:
    return [
        Case(
            name=f"{size}",
            args={
                "x_RD": normal(generator, 328, size),
                "weight_D": normal(generator, size),
                "bias_D": normal(generator, size),
                "eps": 1e-6,
            },
            rows=("x_RD",),
        )
        for size in (32, 128, 20)
    ]


OP = OpSpec(
    name="layer_norm",
    schema="(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
)
