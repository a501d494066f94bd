"""The last step of `experts`: what a row's picks gave, summed in the order of the ops."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# Rows up to which a row has more programs.
FEW_ROWS = 128


@triton.jit
def pick_of(out, ids, pick, column, inside, D, first, E, parts):
    """A pick's values and its range, each alone in a tuple; zeros and -1 for experts not here."""
    expert = tl.load(ids + pick) - first
    here = (expert >= 0) & (expert < E)
    value = tl.load(out + pick * D + column, mask=inside & here, other=0.0)
    return (value,), (tl.where(here, expert * parts // E, -1),)


@triton.jit
def ranges_of(values, ranges, FIRST: tl.constexpr, PARTS: tl.constexpr, K: tl.constexpr):
    """The tree over PARTS ranges from FIRST on, each the sum of its values in order."""
    if PARTS == 1:
        total = tl.zeros_like(values[0])
        for k in tl.static_range(K):
            total += tl.where(ranges[k] == FIRST, values[k], 0.0)
    else:
        HALF: tl.constexpr = PARTS // 2
        total = ranges_of(values, ranges, FIRST, HALF, K)
        total += ranges_of(values, ranges, FIRST + HALF, HALF, K)
    return total


@triton.jit
def add_picks(
    out,
    ids,
    result,
    D,
    first,
    E,
    parts,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """result[row] from out[row, pick], [R, K, D] in float32: ids ascending inside each range.

    PARTS is a power of two: empty ranges after the last leave the ops' tree as it is. All of a
    row's picks are on their way before the first is added.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < D
    values, ranges = pick_of(out, ids, row * K, column, inside, D, first, E, parts)
    for k in tl.static_range(1, K):
        value, its = pick_of(out, ids, row * K + k, column, inside, D, first, E, parts)
        values += value
        ranges += its
    total = ranges_of(values, ranges, 0, PARTS, K)
    tl.store(result + row * D + column, total.to(result.dtype.element_ty), mask=inside)


def sum_picks(
    out_PD: Tensor, ids_RK: Tensor, result_RD: Tensor, first: int, num_experts: int, parts: int
) -> None:
    """Fill result from the picks of the experts `first` to `first + num_experts`, in `parts`
    ranges."""
    rows, size = result_RD.shape
    columns = min(512 if rows <= FEW_ROWS else 1024, triton.next_power_of_2(size))
    add_picks[(rows, triton.cdiv(size, columns))](
        out_PD,
        ids_RK,
        result_RD,
        size,
        first,
        num_experts,
        parts,
        K=ids_RK.shape[1],
        PARTS=triton.next_power_of_2(parts),
        COLUMNS=columns,
        num_warps=4,
    )
