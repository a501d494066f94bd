"""`pick_rows`: scores of visible rows, or of listed blocks of them, the best ones, and the best
blocks by their best row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.best import Select, best
from tensorfold.backends.cuda_triton.kernels.index_scores import (
    Index,
    given,
    listed_scores,
    rows_at_once,
    visible_scores,
)
from tensorfold.backends.cuda_triton.kernels.whole import whole

# Blocks of a program of `block_scores`.
BLOCKS = 128


@triton.jit(do_not_specialize=["width", "num_blocks"])
def block_scores(
    scores, visible, out, width, num_blocks, SIZE: tl.constexpr, S: tl.constexpr, B: tl.constexpr
):
    """Each block's best visible score, out [rows, blocks]; the newest row's block is the best."""
    row = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0) * B + tl.arange(0, B)
    member = tl.arange(0, S)
    seen = tl.load(visible + row)
    if tl.program_id(0) * B * SIZE < seen:
        place = block[:, None] * SIZE + member[None, :]
        mask = (place < seen) & (member < SIZE)[None, :]
        score = tl.load(scores + row * width + place, mask=mask, other=float("-inf"))
        most = tl.where(block == (seen - 1) // SIZE, float("inf"), tl.max(score, 1))
        tl.store(out + row * num_blocks + block, most, mask=block < num_blocks)


def best_blocks(score: Tensor, visible_R: Tensor, keep: int, size: int, kept_RB: Tensor) -> None:
    rows, width = score.shape
    num_blocks = triton.cdiv(width, size)
    by_block = torch.empty(rows, num_blocks, device=score.device)
    block_scores[(triton.cdiv(num_blocks, BLOCKS), rows)](
        score,
        visible_R,
        by_block,
        width,
        num_blocks,
        SIZE=size,
        S=triton.next_power_of_2(size),
        B=BLOCKS,
        num_warps=4,
    )
    best(by_block, Select(visible_R, size - 1, size), keep, kept_RB, tokens=False)


def pick_rows(
    q_RHD: Tensor,
    weight_RH: Tensor,
    keys_SD: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    visible_R: Tensor,
    blocks_RB: Tensor,
    top: int,
    keep: int,
    size: int,
    page: int,
    width: int,
) -> tuple[Tensor, Tensor]:
    """A row's blocks_RB ascend, -1 past the end."""
    rows, listed = q_RHD.shape[0], blocks_RB.shape[1] > 0
    list_RK = torch.empty(rows, top, dtype=torch.int64, device=q_RHD.device)
    kept_RB = torch.empty(rows, keep, dtype=torch.int64, device=q_RHD.device)
    index = given(Index(q_RHD, weight_RH, keys_SD, table_LP, lane_R, visible_R, 0, 1, page))
    blocks_RB = whole(blocks_RB)
    # Rows that keep all they see need no scores.
    least = min(top, keep * size) if keep else top
    entries = max(width if keep or not listed else 0, blocks_RB.shape[1] * size)
    at_once = rows_at_once(entries)
    for first in range(0, rows, at_once):
        end = min(first + at_once, rows)
        visible = index.position_R[first:end]
        if keep or not listed:
            score = visible_scores(index, first, end, width, least)
            if keep:
                best_blocks(score, visible, keep, size, kept_RB[first:end])
        select = Select(visible, 0, 1)
        if listed:
            score = listed_scores(index, blocks_RB, size, first, end)
            select = Select(visible, 0, 1, blocks_RB[first:end], size)
        best(score, select, top, list_RK[first:end], tokens=False)
    return list_RK, kept_RB
