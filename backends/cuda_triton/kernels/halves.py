"""Blocks moved in pieces of their columns: a piece changes layout through little shared memory."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def halves(value, ROWS: tl.constexpr, HALF: tl.constexpr):
    """The left and right columns of [ROWS, 2 * HALF]."""
    return tl.split(tl.permute(tl.reshape(value, (ROWS, 2, HALF)), (0, 2, 1)))


@triton.jit
def store_rows(
    out,
    value,
    row,
    by_row,
    column,
    here,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PIECES: tl.constexpr,
):
    """value [ROWS, COLUMNS] to the rows of out that are here, from a column on, in PIECES."""
    if PIECES == 1:
        out_at = out + row[:, None] * by_row + column + tl.arange(0, COLUMNS)[None, :]
        tl.store(out_at, value.to(out.dtype.element_ty), mask=here[:, None])
    else:
        HALF: tl.constexpr = COLUMNS // 2
        left, right = halves(value, ROWS, HALF)
        store_rows(out, left, row, by_row, column, here, ROWS, HALF, PIECES // 2)
        store_rows(out, right, row, by_row, column + HALF, here, ROWS, HALF, PIECES // 2)
