"""Exponentials over a vocabulary and their sum, for log-probabilities and cuts."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal


def halved_sums(x_SV: Tensor) -> Tensor:
    """Each row's sum, one half added to the other until one number is left: pointwise, so that a
    row's bits do not follow the number of rows."""
    while x_SV.shape[1] > 1:
        half = (x_SV.shape[1] + 1) // 2
        over = x_SV.shape[1] - half
        x_SV = torch.cat([x_SV[:, :over] + x_SV[:, half:], x_SV[:, over:half]], 1)
    return x_SV[:, 0]


def reference(x_SV: Tensor, most_S: Tensor) -> tuple[Tensor, Tensor]:
    """exp(x - most), [S, V], and each row's sum in an order that the row's width alone fixes; both
    in x's format, float32 or float64."""
    raised_SV = torch.exp(x_SV - most_S[:, None])
    return raised_SV, halved_sums(raised_SV)


def shape(x_SV: Tensor, most_S: Tensor) -> tuple[Tensor, Tensor]:
    return x_SV.new_empty(x_SV.shape), x_SV.new_empty(x_SV.shape[0])


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for size, dtype in ((1, torch.float32), (163, torch.float64), (5000, torch.float32)):
        x_SV = normal(generator, 328, size, scale=4.0).to(dtype)
        x_SV[:, 1::5] = float("-inf")
        args = {"x_SV": x_SV, "most_S": x_SV.amax(-1)}
        found.append(Case(name=f"{size} {dtype}", args=args, rows=("x_SV", "most_S")))
    return found


OP = OpSpec(
    name="exp_sums",
    schema="(Tensor x, Tensor most) -> (Tensor, Tensor)",
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("x_SV", "most_S"),
)
