"""The best places of rows of scores, ascending, ties to the lowest place, under two ops.

A program holds a run of a row's scores in registers, finds the least kept one by halving the range
of its bits, and writes what it keeps in order. Long rows are cut into runs whose best are gathered
first. All of it is comparison and counting, so it is exact however it is cut.

N scores of a program.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# A run, and the warps of its program; a row is cut while it is longer. Tuned on an H200: of few
# rows the time of one program counts, of many how much of them the GPU has under way.
FEW = 16
SHORTEST = (4096, 8)
DENSEST = (2048, 4)


class Kept(NamedTuple):
    """Entries of rows after a cut: bits that order them, 0 where there is none, and places."""

    bits_RN: Tensor
    place_RN: Tensor


@triton.jit
def ordered(score):
    """Bits that compare as the scores do, as unsigned numbers; both zeros alike."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def keep(bits, valid, top):
    """The `top` best of the valid ones, of equal ones those that come first."""
    bits = tl.where(valid, bits, 0)
    kept = valid
    if tl.sum(valid.to(tl.int32), 0) > top:
        least = tl.zeros((), tl.uint32)
        step = tl.full((), 0x80000000, tl.uint32)
        count = top + 1
        # Once exactly `top` are at `least` or above there is nothing left to tell apart.
        while (step > 0) & (count != top):
            higher = least | step
            found = tl.sum((bits >= higher).to(tl.int32), 0)
            count = tl.where(found >= top, found, count)
            least = tl.where(found >= top, higher, least)
            step = step >> 1
        kept = valid & (bits >= least)
        if count != top:
            above = valid & (bits > least)
            level = (valid & (bits == least)).to(tl.int32)
            room = top - tl.sum(above.to(tl.int32), 0)
            kept = above | ((level != 0) & (tl.cumsum(level, 0) <= room))
    return kept


@triton.jit
def seen_of(position, row, ahead, pool):
    return (tl.load(position + row) + ahead) // pool


@triton.jit
def run_of(
    scores, bits, places, blocks, row, at, inside, width, seen, num_blocks, BLOCK: tl.constexpr,
    STAGED: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """The bits, validity and places of entries `at` of a row."""
    if STAGED:
        own = tl.load(bits + row * width + at, mask=inside, other=0).to(tl.uint32, bitcast=True)
        place = tl.load(places + row * width + at, mask=inside, other=0)
        valid = own != 0
    else:
        valid = inside & (at < seen)
        place = at
        if LISTED:
            valid = inside
            block = tl.load(blocks + row * num_blocks + at // BLOCK, mask=inside, other=0)
            place = (block * BLOCK + at % BLOCK).to(tl.int32)
        score = tl.load(scores + row * width + at, mask=valid, other=0.0)
        if LISTED:
            valid = valid & (score != float("-inf"))
        own = ordered(score)
    return own, valid, place


@triton.jit(do_not_specialize=["width", "top", "num_blocks", "ahead", "pool"])
def cut(
    scores, bits, places, blocks, position, out_bits, out_places, width, top, num_blocks, ahead,
    pool, BLOCK: tl.constexpr, STAGED: tl.constexpr, LISTED: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The `top` best of each run, out [rows, runs, top]."""
    run = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    at = run * N + tl.arange(0, N)
    inside = at < width
    seen = seen_of(position, row, ahead, pool)
    own, valid, place = run_of(
        scores, bits, places, blocks, row, at, inside, width, seen, num_blocks,
        BLOCK, STAGED, LISTED,
    )  # fmt: skip
    kept = keep(own, valid, top)
    count = kept.to(tl.int32)
    to = (row * tl.num_programs(0) + run) * top + tl.cumsum(count, 0) - 1
    tl.store(out_bits + to, own.to(tl.int32, bitcast=True), mask=kept)
    tl.store(out_places + to, place, mask=kept)
    total = tl.sum(count, 0)
    after = tl.arange(0, N)
    start = (row * tl.num_programs(0) + run) * top
    past = (after >= total) & (after < top)
    tl.store(out_bits + start + after, tl.zeros((N,), tl.int32), mask=past)


@triton.jit(do_not_specialize=["width", "top", "entries", "num_blocks", "ahead", "pool"])
def write(
    scores, bits, places, blocks, position, out, width, top, entries, num_blocks, ahead, pool,
    BLOCK: tl.constexpr, STAGED: tl.constexpr, LISTED: tl.constexpr, TOKENS: tl.constexpr,
    MEMBERS: tl.constexpr, ENTRIES: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The best of a row, out [rows, entries], -1 past the end; with TOKENS each place's `pool`
    tokens, and the tokens of the open pool."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, N)
    inside = at < width
    seen = seen_of(position, row, ahead, pool)
    own, valid, place = run_of(
        scores, bits, places, blocks, row, at, inside, width, seen, num_blocks,
        BLOCK, STAGED, LISTED,
    )  # fmt: skip
    kept = keep(own, valid, top)
    count = kept.to(tl.int32)
    rank = tl.cumsum(count, 0) - 1
    used = tl.sum(count, 0)
    to = out + row * entries
    entry = tl.arange(0, ENTRIES)
    rest = tl.full((ENTRIES,), -1, tl.int64)
    if TOKENS:
        for member in tl.static_range(MEMBERS):
            token = place.to(tl.int64) * MEMBERS + member
            tl.store(to + rank * MEMBERS + member, token, mask=kept)
        used = used * MEMBERS
        tail = (tl.load(position + row) + 1) % MEMBERS
        token = seen * MEMBERS + (entry - used)
        rest = tl.where(entry < used + tail, token.to(tl.int64), rest)
    else:
        tl.store(to + rank, place.to(tl.int64), mask=kept)
    tl.store(to + entry, rest, mask=(entry >= used) & (entry < entries))


class Select(NamedTuple):
    """Which entries rows may keep: the first (position_R + ahead) // pool of their scores, or with
    `blocks_RB` of `size` places all that are not -inf."""

    position_R: Tensor
    ahead: int
    pool: int
    blocks_RB: Tensor | None = None
    size: int = 1


def best(
    scores_RN: Tensor, select: Select, top: int, out_RK: Tensor, *, tokens: bool, run: int = 0
) -> None:
    """Fill out_RK [R, K] (int64) with the `top` best of each row; `run` sets another run."""
    rows, width = scores_RN.shape
    usual, warps = SHORTEST if rows <= FEW else DENSEST
    blocks = select.blocks_RB
    kept = Kept(scores_RN, scores_RN)
    staged = False

    def flags() -> dict[str, bool | int]:
        return {"BLOCK": select.size, "STAGED": staged, "LISTED": blocks is not None}

    def inputs() -> tuple[Tensor, ...]:
        listed = scores_RN if blocks is None else blocks
        return (scores_RN, kept.bits_RN, kept.place_RN, listed, select.position_R)

    num_blocks = 0 if blocks is None else blocks.shape[1]
    run = max(run or usual, triton.next_power_of_2(2 * top))
    while width > run:
        runs = triton.cdiv(width, run)
        shorter = Kept(
            torch.empty(rows, runs * top, dtype=torch.int32, device=scores_RN.device),
            torch.empty(rows, runs * top, dtype=torch.int32, device=scores_RN.device),
        )
        cut[(runs, rows)](
            *inputs(), *shorter, width, top, num_blocks, select.ahead, select.pool,
            **flags(), N=run, num_warps=warps,
        )  # fmt: skip
        kept, width, staged = shorter, runs * top, True
    write[(rows,)](
        *inputs(), out_RK, width, top, out_RK.shape[1], num_blocks, select.ahead, select.pool,
        **flags(), TOKENS=tokens, MEMBERS=select.pool if tokens else 1,
        ENTRIES=triton.next_power_of_2(out_RK.shape[1]),
        N=max(16, triton.next_power_of_2(width)), num_warps=warps,
    )  # fmt: skip
