"""One product a head: every head has its own weight."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal


def reference(x_RHK: Tensor, w_HKN: Tensor) -> Tensor:
    """[R, H, K] and [H, K, N] to [R, H, N]."""
    return torch.einsum("rhk,hkn->rhn", x_RHK, w_HKN)


def shape(x_RHK: Tensor, w_HKN: Tensor) -> Tensor:
    dtype = torch.promote_types(x_RHK.dtype, w_HKN.dtype)
    return x_RHK.new_empty(x_RHK.shape[0], w_HKN.shape[0], w_HKN.shape[2], dtype=dtype)


def cases(generator: torch.Generator) -> list[Case]:
    sizes = ((4, 64, 64), (4, 32, 24), (2, 64, 256))
    return [
        Case(
            name=f"{h}x{k}x{n}",
            args={
                "x_RHK": normal(generator, 328, h, k),
                "w_HKN": normal(generator, h, k, n, scale=k**-0.5),
            },
            rows=("x_RHK",),
        )
        for h, k, n in sizes
    ]


OP = OpSpec(
    name="linear_heads",
    schema="(Tensor x, Tensor w) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
)
