"""Scores of an index: sum over h of weight[h] * relu(q[h] . key), under two ops.

A program has the keys of a run of places in registers and takes row after row of one stream to
them; or, of rows that may look at listed blocks of places alone, one row and a run of its list.
A score is one entry of a product and a sum over heads whose order follows from their number, so
nothing else in a program reaches it.

P places of a program, D key size, H heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import ALIGNED, whole

# Tuned on an H200; float32 is multiplied without tensor cores, in smaller tiles.
PLACES = 128
PLACES_WIDE = 32
WARPS = 4
# Rows that take turns at a program's keys, once there are enough to fill the GPU without.
TURNS = 16
MANY = 64
# Scores held at once, in bytes: what a selection reads again and again stays in the cache.
SCRATCH = 48 * 2**20


class Index(NamedTuple):
    """An index's rows and keys: key p of a lane lies in page p // per_page of its table. A row sees
    the places below (position_R + ahead) // pool."""

    q_RHD: Tensor
    weight_RH: Tensor
    keys_SD: Tensor
    table_LP: Tensor
    lane_R: Tensor
    position_R: Tensor
    ahead: int
    pool: int
    per_page: int


@triton.jit
def load_keys(
    keys, table, own_lane, place, mask, by_lane, SIZE, PAGE: tl.constexpr, D: tl.constexpr
):
    page = tl.load(table + own_lane * by_lane + place // PAGE, mask=mask, other=0)
    slot = page.to(tl.int64) * PAGE + place % PAGE
    size = tl.arange(0, D)
    at = keys + slot[:, None] * SIZE + size[None, :]
    return tl.load(at, mask=mask[:, None] & (size < SIZE)[None, :], other=0.0)


@triton.jit
def score_of(q, weight, row, keys_PD, HEADS, SIZE, H: tl.constexpr, D: tl.constexpr):
    head = tl.arange(0, H)
    size = tl.arange(0, D)
    q_at = q + (row * HEADS + head)[None, :] * SIZE + size[:, None]
    q_DH = tl.load(q_at, mask=(head < HEADS)[None, :] & (size < SIZE)[:, None], other=0.0)
    weight_H = tl.load(weight + row * HEADS + head, mask=head < HEADS, other=0.0).to(tl.float32)
    dot_PH = tl.dot(keys_PD, q_DH, input_precision="ieee")
    return tl.sum(tl.maximum(dot_PH, 0.0) * weight_H[None, :], 1)


@triton.jit(do_not_specialize=["first", "end", "width", "by_lane", "least", "turns"])
def score_runs(
    q, weight, keys, table, lane, position, out, first, end, width, by_lane, least, turns,
    AHEAD: tl.constexpr, POOL: tl.constexpr, PAGE: tl.constexpr, HEADS: tl.constexpr,
    SIZE: tl.constexpr, H: tl.constexpr, D: tl.constexpr, P: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """Of rows [first, end) the scores of visible places, out [rows, width]; what lies beyond them
    is left. Rows that see at most `least` places need none."""
    place = tl.program_id(0) * P + tl.arange(0, P)
    row = first.to(tl.int64) + tl.program_id(1) * turns
    stop = tl.minimum(row + turns, end)
    turn = tl.arange(0, TURNS)
    inside = place < width
    while row < stop:
        own_lane = tl.load(lane + row)
        every = row + turn
        others = tl.load(lane + every, mask=every < stop, other=-1)
        last = tl.min(tl.where(others != own_lane, every, stop), 0)
        seen = (tl.load(position + every, mask=every < last, other=0) + AHEAD) // POOL
        most = tl.max(tl.where(every < last, seen, 0), 0)
        if (most > least) & (tl.program_id(0) * P < most):
            keys_PD = load_keys(keys, table, own_lane, place, inside, by_lane, SIZE, PAGE, D)
            for step in range((last - row).to(tl.int32)):
                score_P = score_of(q, weight, row + step, keys_PD, HEADS, SIZE, H, D)
                tl.store(out + (row + step - first) * width + place, score_P, mask=inside)
        row = last


@triton.jit(do_not_specialize=["first", "width", "by_lane", "num_blocks"])
def score_lists(
    q, weight, keys, table, lane, position, blocks, out, first, width, by_lane,
    num_blocks, BLOCK: tl.constexpr, PAGE: tl.constexpr, HEADS: tl.constexpr,
    SIZE: tl.constexpr, H: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Scores of a row's listed blocks in order, out [rows, width]; -inf where it sees nothing."""
    entry = tl.program_id(0) * P + tl.arange(0, P)
    row = first.to(tl.int64) + tl.program_id(1)
    inside = entry < width
    block = tl.load(blocks + row * num_blocks + entry // BLOCK, mask=inside, other=-1)
    place = block * BLOCK + entry % BLOCK
    sees = (block >= 0) & (place < tl.load(position + row))
    put = out + (row - first) * width + entry
    if tl.max(sees.to(tl.int32), 0) == 0:
        tl.store(put, tl.full((P,), float("-inf"), tl.float32), mask=inside)
    else:
        place = tl.where(sees, place, 0)
        own_lane = tl.load(lane + row)
        keys_PD = load_keys(keys, table, own_lane, place, sees, by_lane, SIZE, PAGE, D)
        score_P = score_of(q, weight, row, keys_PD, HEADS, SIZE, H, D)
        tl.store(put, tl.where(sees, score_P, float("-inf")), mask=inside)


def rows_at_once(width: int) -> int:
    """Rows whose scores are held at once: such that runs of rows begin where wide loads may."""
    return max(ALIGNED, SCRATCH // (4 * max(width, 1)) // ALIGNED * ALIGNED)


def given(index: Index) -> Index:
    """As kernels read them."""
    assert index.q_RHD.dtype == index.keys_SD.dtype, (index.q_RHD.dtype, index.keys_SD.dtype)
    return index._replace(
        q_RHD=whole(index.q_RHD),
        weight_RH=whole(index.weight_RH),
        keys_SD=whole(index.keys_SD),
        table_LP=whole(index.table_LP),
        lane_R=whole(index.lane_R),
        position_R=whole(index.position_R),
    )


def places_of(index: Index) -> int:
    return PLACES_WIDE if index.q_RHD.dtype == torch.float32 else PLACES


def sizes_of(index: Index) -> dict[str, int]:
    heads, size = index.q_RHD.shape[1:]
    return {
        "HEADS": heads,
        "SIZE": size,
        "H": max(16, triton.next_power_of_2(heads)),
        "D": max(16, triton.next_power_of_2(size)),
        "P": places_of(index),
        "PAGE": index.per_page,
    }


def visible_scores(index: Index, first: int, end: int, width: int, least: int) -> Tensor:
    """Scores [end - first, width] of rows that see more than `least` places, where they see."""
    rows = end - first
    out = torch.empty(rows, width, device=index.q_RHD.device)
    turns = TURNS if rows >= MANY else 1
    score_runs[(triton.cdiv(width, places_of(index)), triton.cdiv(rows, turns))](
        *index[:6],
        out,
        first,
        end,
        width,
        index.table_LP.shape[1],
        least,
        turns,
        AHEAD=index.ahead,
        POOL=index.pool,
        **sizes_of(index),
        TURNS=TURNS,
        num_warps=WARPS,
    )
    return out


def listed_scores(index: Index, blocks_RB: Tensor, size: int, first: int, end: int) -> Tensor:
    """Scores [end - first, B * size] of what rows see of their blocks."""
    width = blocks_RB.shape[1] * size
    out = torch.empty(end - first, width, device=index.q_RHD.device)
    score_lists[(triton.cdiv(width, places_of(index)), end - first)](
        *index[:6],
        blocks_RB,
        out,
        first,
        width,
        index.table_LP.shape[1],
        blocks_RB.shape[1],
        BLOCK=size,
        **sizes_of(index),
        num_warps=WARPS,
    )
    return out
