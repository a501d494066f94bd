"""Product of rows with a weight, summed over K in one order fixed by the weight's shape."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal


def reference(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    """[R, K] and [N, K] to [R, N], in the wider of the two formats."""
    return x_RK @ w_NK.T


def shape(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    dtype = torch.promote_types(x_RK.dtype, w_NK.dtype)
    return x_RK.new_empty(x_RK.shape[0], w_NK.shape[0], dtype=dtype)


def cases(generator: torch.Generator) -> list[Case]:
    sizes = ((904, 256), (96, 256), (4096, 256), (24, 1024), (16, 48), (12, 64))
    return [
        Case(
            name=f"{n}x{k}",
            args={
                "x_RK": normal(generator, 328, k),
                "w_NK": normal(generator, n, k, scale=k**-0.5),
            },
            rows=("x_RK",),
        )
        for n, k in sizes
    ]


OP = OpSpec(
    name="linear",
    schema="(Tensor x, Tensor w) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
)
