"""A product whose inner dimension ranks may cut: eight fixed parts of K, added in a fixed tree.

Each part is summed by itself; parts are added as ((0+1)+(2+3))+((4+5)+(6+7)), so that any rank
count of 1, 2, 4 or 8 gives the same bits. A K that eight does not divide has one part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal
from tensorfold.core.share import UNITS

PARTS = UNITS


def split(w_NK: Tensor, parts: int | None = None) -> Tensor:
    """[N, K] to the op's weight [parts, K / parts, N]; a rank's own run of K has fewer parts."""
    n, k = w_NK.shape
    if parts is None:
        parts = PARTS if k % PARTS == 0 else 1
    return w_NK.reshape(n, parts, k // parts).permute(1, 2, 0).contiguous()


def tree(parts_PRN: Tensor) -> Tensor:
    """Adds the parts pairwise, neighbours first; of an odd number the last waits for the next."""
    while parts_PRN.shape[0] > 1:
        even = parts_PRN.shape[0] // 2 * 2
        sums_PRN = parts_PRN[0:even:2] + parts_PRN[1:even:2]
        parts_PRN = torch.cat([sums_PRN, parts_PRN[even:]]) if even < len(parts_PRN) else sums_PRN
    return parts_PRN[0]


def reference(x_RK: Tensor, w_PKN: Tensor) -> Tensor:
    """[R, P * K] and [P, K, N] to [R, N], in the wider of the two formats."""
    parts = w_PKN.shape[0]
    x_PRK = x_RK.reshape(x_RK.shape[0], parts, -1).transpose(0, 1)
    return tree(torch.stack([x @ w for x, w in zip(x_PRK, w_PKN, strict=True)]))


def shape(x_RK: Tensor, w_PKN: Tensor) -> Tensor:
    dtype = torch.promote_types(x_RK.dtype, w_PKN.dtype)
    return x_RK.new_empty(x_RK.shape[0], w_PKN.shape[2], dtype=dtype)


def cases(generator: torch.Generator) -> list[Case]:
    sizes = ((256, 256), (256, 512), (256, 48), (64, 96), (64, 20))
    return [
        Case(
            name=f"{n}x{k}",
            args={
                "x_RK": normal(generator, 328, k),
                "w_PKN": split(normal(generator, n, k, scale=k**-0.5)),
            },
            rows=("x_RK",),
        )
        for n, k in sizes
    ]


OP = OpSpec(
    name="linear_parts",
    schema="(Tensor x, Tensor w) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
)
