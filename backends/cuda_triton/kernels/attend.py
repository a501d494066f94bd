"""Attention of heads over listed rows that are keys and values at once, under two ops.

A row's entries are cut into parts of a fixed number of them. A part has its own largest score, sum
and mixed values, and parts are folded into a row's total in order. Few rows spread their parts
over the GPU and fold them in a second kernel (`parts`, `fold`); of many rows a program folds a
row's parts as it makes them (`rows_whole`, here and in `attend_hopper`). The operations on a part
and of a fold are the same, so the form changes no bit.

H heads of a program, E entries of a part, C channels in up to four slices of D.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import attend_hopper
from tensorfold.backends.cuda_triton.kernels.whole import whole

# Rows up to which parts are spread. A row whole takes as long as all its parts one after another,
# and up to as many rows as there are multiprocessors take no longer than one.
FEW = 64
# Slices keep a part's mixed values out of the registers that the total fills.
SLICE = 128
# Parts that `fold` has under way.
FOLDED = tl.constexpr(6)
MOST_SLICES = 4


class Shape(NamedTuple):
    """Heads of a program and how the compiler schedules it: no bit depends on them."""

    heads: int
    warps: int
    stages: int = 1


class Tiles(NamedTuple):
    """Entries of a part, which a row's bits do depend on, and the shapes of the forms."""

    entries: int
    few: Shape
    some: Shape
    many: Shape


# Tuned on an H200. Rows up to FEWEST have too few parts for as many multiprocessors, so heads are
# spread too; a program of many rows has all heads that its registers hold.
FEWEST = 8
LONG = Tiles(128, few=Shape(16, 4), some=Shape(64, 8), many=Shape(64, 8))
SHORT = Tiles(64, few=Shape(16, 4), some=Shape(64, 8), many=Shape(64, 8, 2))
# Float32 is multiplied without tensor cores: small tiles, or the compiler unrolls too much.
WIDE = Tiles(32, few=Shape(16, 4), some=Shape(16, 4), many=Shape(16, 4))


@triton.jit
def entry(place, row, window, list, table, lane, by_lane, WINDOW, LISTED, PAGE: tl.constexpr):
    """The rows that a row's entries name, -1 where unused."""
    listed = tl.load(
        list + row * LISTED + (place - WINDOW),
        mask=(place >= WINDOW) & (place < WINDOW + LISTED),
        other=-1,
    )
    if PAGE:
        token = tl.maximum(listed, 0)
        at = tl.load(lane + row) * by_lane + token // PAGE
        slot = tl.load(table + at, mask=listed >= 0, other=0) * PAGE + token % PAGE
        name = tl.where(listed >= 0, slot, -1)
    else:
        near = tl.load(window + row * WINDOW + place, mask=place < WINDOW, other=-1)
        name = tl.where(place < WINDOW, near, listed)
    return name.to(tl.int32)


@triton.jit
def begins(name, place, ring, fresh, memory, RING, WINDOW, C, PAGE: tl.constexpr):
    """Where each entry's channels begin."""
    name = tl.maximum(name, 0).to(tl.int64)
    begin = memory + name * C
    if not PAGE:
        recent = tl.where(name < RING, ring + name * C, fresh + (name - RING) * C)
        begin = tl.where(place < WINDOW, recent, begin)
    return begin


@triton.jit
def used_parts(row, window, list, WINDOW, LISTED, PLACES: tl.constexpr, E: tl.constexpr):
    """Parts up to the last used entry."""
    place = tl.arange(0, PLACES)
    near = tl.load(window + row * WINDOW + place, mask=place < WINDOW, other=-1)
    far = tl.load(
        list + row * LISTED + (place - WINDOW),
        mask=(place >= WINDOW) & (place < WINDOW + LISTED),
        other=-1,
    )
    last = tl.max(tl.where(tl.maximum(near, far) >= 0, place + 1, 0), 0)
    return (last + E - 1) // E


@triton.jit
def weigh(score_HE, used, scale, like, E: tl.constexpr):
    """A part's largest scores, its weights against them, and their sums."""
    score_HE = tl.where(used[None, :], score_HE * scale, float("-inf"))
    most_H = tl.max(score_HE, 1)
    base_H = tl.where(most_H == float("-inf"), 0.0, most_H)
    weight_HE = tl.exp(score_HE - base_H[:, None]).to(like.dtype)
    # A product sums along E in one order whatever the heads and warps of a program; a reduction
    # does not.
    ones = tl.full((E, 16), 1.0, like.dtype)
    total_H = tl.max(tl.dot(weight_HE, ones, input_precision="ieee"), 1)
    return most_H, weight_HE, total_H


@triton.jit
def shares(most_H, part_most_H):
    """The largest of both, and what the total and the part are multiplied by."""
    both_H = tl.maximum(most_H, part_most_H)
    base_H = tl.where(both_H == float("-inf"), 0.0, both_H)
    return both_H, tl.exp(most_H - base_H), tl.exp(part_most_H - base_H)


@triton.jit
def folded(total, part, old, new):
    return tl.fma(total, old, part * new)


@triton.jit
def load_slice(begin, used, channel, at, C, D: tl.constexpr):
    mask = used[:, None] & (channel + at < C)[None, :]
    return tl.load(begin[:, None] + (channel + at)[None, :], mask=mask, other=0.0)


@triton.jit
def load_heads(q_at, has_head, channel, at, C):
    mask = has_head[:, None] & (channel + at < C)[None, :]
    return tl.load(q_at + at, mask=mask, other=0.0)


@triton.jit
def scored(q_at, has_head, channel, at, C, key_ED, score_HE):
    q_HD = load_heads(q_at, has_head, channel, at, C)
    return tl.dot(q_HD, tl.trans(key_ED), score_HE, input_precision="ieee")


@triton.jit
def put_mixed(put, weight_HE, key_ED, has_head, channel, at, C):
    mixed_HD = tl.dot(weight_HE, key_ED, input_precision="ieee")
    tl.store(put + at, mixed_HD, mask=has_head[:, None] & (channel + at < C)[None, :])


@triton.jit(do_not_specialize=["by_lane", "RING", "WINDOW", "LISTED"])
def parts(
    q, ring, fresh, window, memory, list, table, lane, most, total, mixed, scale, by_lane,
    RING, WINDOW, LISTED, NUM_HEADS: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    E: tl.constexpr, D: tl.constexpr, SLICES: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One part of one row: most and total [R, parts, heads], mixed [R, parts, heads, C]."""
    part = tl.program_id(0)
    num_parts = tl.num_programs(0)
    row = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1) * H + tl.arange(0, H)
    has_head = head < NUM_HEADS
    channel = tl.arange(0, D)
    place = part * E + tl.arange(0, E)
    own = (row * num_parts + part) * NUM_HEADS
    name = entry(place, row, window, list, table, lane, by_lane, WINDOW, LISTED, PAGE)
    used = name >= 0
    if tl.max(used.to(tl.int32), 0) == 0:
        tl.store(most + own + head, tl.full((H,), float("-inf"), tl.float32), mask=has_head)
    else:
        begin = begins(name, place, ring, fresh, memory, RING, WINDOW, C, PAGE)
        q_at = q + (row * NUM_HEADS + head)[:, None] * C + channel[None, :]
        key0 = load_slice(begin, used, channel, 0, C, D)
        score_HE = scored(q_at, has_head, channel, 0, C, key0, tl.zeros((H, E), tl.float32))
        if SLICES > 1:
            key1 = load_slice(begin, used, channel, D, C, D)
            score_HE = scored(q_at, has_head, channel, D, C, key1, score_HE)
        if SLICES > 2:
            key2 = load_slice(begin, used, channel, 2 * D, C, D)
            score_HE = scored(q_at, has_head, channel, 2 * D, C, key2, score_HE)
        if SLICES > 3:
            key3 = load_slice(begin, used, channel, 3 * D, C, D)
            score_HE = scored(q_at, has_head, channel, 3 * D, C, key3, score_HE)
        most_H, weight_HE, total_H = weigh(score_HE, used, scale, key0, E)
        tl.store(most + own + head, most_H, mask=has_head)
        tl.store(total + own + head, total_H, mask=has_head)
        put = mixed + (own + head)[:, None] * C + channel[None, :]
        put_mixed(put, weight_HE, key0, has_head, channel, 0, C)
        if SLICES > 1:
            put_mixed(put, weight_HE, key1, has_head, channel, D, C)
        if SLICES > 2:
            put_mixed(put, weight_HE, key2, has_head, channel, 2 * D, C)
        if SLICES > 3:
            put_mixed(put, weight_HE, key3, has_head, channel, 3 * D, C)


@triton.jit(do_not_specialize=["num_parts"])
def fold(
    most, total, mixed, sink, out, num_parts, NUM_HEADS: tl.constexpr, C: tl.constexpr,
    PARTS: tl.constexpr, WIDTH: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    """A row's parts into one head's output."""
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, WIDTH)
    part = tl.arange(0, PARTS)
    own = row * num_parts * NUM_HEADS + head
    every = tl.load(most + own + part * NUM_HEADS, mask=part < num_parts, other=float("-inf"))
    stop = tl.max(tl.where(every != float("-inf"), part + 1, 0), 0)
    most_1 = tl.full((1,), float("-inf"), tl.float32)
    total_1 = tl.zeros((1,), tl.float32)
    mixed_C = tl.zeros((WIDTH,), tl.float32)
    one = tl.arange(0, 1)
    for step in tl.range(0, stop, num_stages=FOLDED):
        at = own + step * NUM_HEADS
        part_most_1 = tl.load(most + at + one)
        there = part_most_1 != float("-inf")
        part_total_1 = tl.load(total + at + one, mask=there, other=0.0)
        mask = there & (channel < C)
        part_C = tl.load(mixed + at * C + channel, mask=mask, other=0.0)
        most_1, old_1, new_1 = shares(most_1, part_most_1)
        total_1 = folded(total_1, part_total_1, old_1, new_1)
        mixed_C = folded(mixed_C, part_C, old_1, new_1)
    if SINK:
        total_1 += tl.exp(tl.load(sink + head + one).to(tl.float32) - most_1)
    put = out + (row * NUM_HEADS + head) * C + channel
    tl.store(put, tl.div_rn(mixed_C, tl.broadcast_to(total_1, (WIDTH,))), mask=channel < C)


@triton.jit
def finish(out_at, mixed_HD, total_H, has_head, channel, at, C, D: tl.constexpr):
    mask = has_head[:, None] & (channel + at < C)[None, :]
    value = tl.div_rn(mixed_HD, tl.broadcast_to(total_H[:, None], mixed_HD.shape))
    tl.store(out_at + at, value.to(out_at.dtype.element_ty), mask=mask)


@triton.jit
def mixing(mixed_HD, weight_HE, key_ED, old_H, new_H):
    part_HD = tl.dot(weight_HE, key_ED, input_precision="ieee")
    return folded(mixed_HD, part_HD, old_H[:, None], new_H[:, None])


@triton.jit(do_not_specialize=["by_lane", "RING", "WINDOW", "LISTED"])
def rows_whole(
    q, ring, fresh, window, memory, list, table, lane, sink, out, scale, by_lane,
    RING, WINDOW, LISTED, NUM_HEADS: tl.constexpr, C: tl.constexpr, H: tl.constexpr,
    E: tl.constexpr, D: tl.constexpr, SLICES: tl.constexpr, PLACES: tl.constexpr,
    PAGE: tl.constexpr, SINK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All parts of one row and some heads."""
    row = tl.program_id(1).to(tl.int64)
    head = tl.program_id(0) * H + tl.arange(0, H)
    has_head = head < NUM_HEADS
    channel = tl.arange(0, D)
    q_at = q + (row * NUM_HEADS + head)[:, None] * C + channel[None, :]
    q0 = load_heads(q_at, has_head, channel, 0, C)
    mixed0 = tl.zeros((H, D), tl.float32)
    if SLICES > 1:
        q1 = load_heads(q_at, has_head, channel, D, C)
        mixed1 = tl.zeros((H, D), tl.float32)
    if SLICES > 2:
        q2 = load_heads(q_at, has_head, channel, 2 * D, C)
        mixed2 = tl.zeros((H, D), tl.float32)
    if SLICES > 3:
        q3 = load_heads(q_at, has_head, channel, 3 * D, C)
        mixed3 = tl.zeros((H, D), tl.float32)
    most_H = tl.full((H,), float("-inf"), tl.float32)
    total_H = tl.zeros((H,), tl.float32)
    stop = used_parts(row, window, list, WINDOW, LISTED, PLACES, E)
    for part in tl.range(0, stop, num_stages=STAGES):
        place = part * E + tl.arange(0, E)
        name = entry(place, row, window, list, table, lane, by_lane, WINDOW, LISTED, PAGE)
        used = name >= 0
        begin = begins(name, place, ring, fresh, memory, RING, WINDOW, C, PAGE)
        score_HE = tl.zeros((H, E), tl.float32)
        key0 = load_slice(begin, used, channel, 0, C, D)
        score_HE = tl.dot(q0, tl.trans(key0), score_HE, input_precision="ieee")
        if SLICES > 1:
            key1 = load_slice(begin, used, channel, D, C, D)
            score_HE = tl.dot(q1, tl.trans(key1), score_HE, input_precision="ieee")
        if SLICES > 2:
            key2 = load_slice(begin, used, channel, 2 * D, C, D)
            score_HE = tl.dot(q2, tl.trans(key2), score_HE, input_precision="ieee")
        if SLICES > 3:
            key3 = load_slice(begin, used, channel, 3 * D, C, D)
            score_HE = tl.dot(q3, tl.trans(key3), score_HE, input_precision="ieee")
        part_most_H, weight_HE, part_total_H = weigh(score_HE, used, scale, key0, E)
        most_H, old_H, new_H = shares(most_H, part_most_H)
        total_H = folded(total_H, part_total_H, old_H, new_H)
        mixed0 = mixing(mixed0, weight_HE, key0, old_H, new_H)
        if SLICES > 1:
            mixed1 = mixing(mixed1, weight_HE, key1, old_H, new_H)
        if SLICES > 2:
            mixed2 = mixing(mixed2, weight_HE, key2, old_H, new_H)
        if SLICES > 3:
            mixed3 = mixing(mixed3, weight_HE, key3, old_H, new_H)
    if SINK:
        sink_H = tl.load(sink + head, mask=has_head, other=0.0).to(tl.float32)
        total_H += tl.exp(sink_H - most_H)
    out_at = out + (row * NUM_HEADS + head)[:, None] * C + channel[None, :]
    finish(out_at, mixed0, total_H, has_head, channel, 0, C, D)
    if SLICES > 1:
        finish(out_at, mixed1, total_H, has_head, channel, D, C, D)
    if SLICES > 2:
        finish(out_at, mixed2, total_H, has_head, channel, 2 * D, C, D)
    if SLICES > 3:
        finish(out_at, mixed3, total_H, has_head, channel, 3 * D, C, D)


class Keys(NamedTuple):
    """Where a row's entries lie: `window_RW` names rows of [ring, fresh], `list_RK` rows of memory,
    or with a `page` tokens whose pages table_LP gives by lane_R."""

    ring_SC: Tensor
    fresh_TC: Tensor
    window_RW: Tensor
    memory_SC: Tensor
    list_RK: Tensor
    table_LP: Tensor
    lane_R: Tensor
    page: int


def attend(
    q_RHC: Tensor,
    keys: Keys,
    sink_H: Tensor | None,
    scale: float,
    tiles: Tiles,
    few: int = FEW,
) -> Tensor:
    """[R, H, C]; `few` is how many rows are spread at most."""
    rows, heads, channels = q_RHC.shape
    out_RHC = torch.empty(q_RHC.shape, dtype=q_RHC.dtype, device=q_RHC.device)
    if not rows:
        return out_RHC
    assert q_RHC.dtype == keys.memory_SC.dtype, (q_RHC.dtype, keys.memory_SC.dtype)
    tiles = WIDE if q_RHC.dtype == torch.float32 else tiles
    shape = tiles.many if rows > few else tiles.some if rows > FEWEST else tiles.few
    at_once = min(shape.heads, max(16, triton.next_power_of_2(heads)))
    width = min(SLICE, max(16, triton.next_power_of_2(channels)))
    slices = triton.cdiv(channels, width)
    assert slices <= MOST_SLICES, channels
    window, listed = keys.window_RW.shape[1], keys.list_RK.shape[1]
    num_parts = triton.cdiv(window + listed, tiles.entries)
    q = whole(q_RHC)
    given = [q, *(whole(x) for x in keys if isinstance(x, Tensor))]
    rest = (scale, keys.table_LP.shape[1], keys.ring_SC.shape[0], window, listed)
    sizes = {
        "NUM_HEADS": heads,
        "C": channels,
        "H": at_once,
        "E": tiles.entries,
        "D": width,
        "SLICES": slices,
        "PAGE": keys.page,
    }
    by_heads = triton.cdiv(heads, at_once)
    has_sink = sink_H is not None
    sink = q if sink_H is None else whole(sink_H)
    places = triton.next_power_of_2(window + listed)
    if rows > few and attend_hopper.fits(q):
        args = (*given, sink, out_RHC, *rest)
        attend_hopper.launch(args, tiles.entries, places, keys.page, has_sink)
        return out_RHC
    if rows > few:
        rows_whole[(by_heads, rows)](
            *given, sink, out_RHC, *rest, **sizes, PLACES=places, SINK=has_sink,
            STAGES=shape.stages, num_warps=shape.warps,
        )  # fmt: skip
        return out_RHC
    most = torch.empty(rows, num_parts, heads, device=q.device)
    total = torch.empty(rows, num_parts, heads, device=q.device)
    mixed = torch.empty(rows, num_parts, heads, channels, device=q.device)
    parts[(num_parts, by_heads, rows)](
        *given, most, total, mixed, *rest, **sizes, num_warps=shape.warps
    )
    fold[(heads, rows)](
        most,
        total,
        mixed,
        sink,
        out_RHC,
        num_parts,
        NUM_HEADS=heads,
        C=channels,
        PARTS=triton.next_power_of_2(num_parts),
        WIDTH=triton.next_power_of_2(channels),
        SINK=has_sink,
        num_warps=4,
    )
    return out_RHC
