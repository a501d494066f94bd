"""Rows whole of `attend` on a Hopper GPU, for heads and channels that fill its tensor cores.

The operations on a part and of a fold are those of `rows_whole` in `attend`, in its order, so no
bit differs; what differs is when they run. A slice of keys is copied to where the previous part's
lay as soon as its last product has read them, while the products of the slices after it run, and
halves of a part's scores are made by half of the warps each.

H heads of a program, E entries of a part, C channels in four slices of D.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import async_copy

# Triton 3.7 calls it by another name.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

# The major compute capability whose tensor cores these layouts are of.
HOPPER = 9
HEADS = 64
CHANNELS = 512
SLICES = 4
# Two groups of four, each with half of the entries of a part's scores and of a slice's channels.
WARPS = 8


@gluon.jit
def listed_of(place, row, window, list, WINDOW, LISTED, PAGE: gl.constexpr):
    """What stands at a row's places: a token of a page, else a row of the ring or of memory."""
    listed = gl.load(
        list + row * LISTED + (place - WINDOW),
        mask=(place >= WINDOW) & (place < WINDOW + LISTED),
        other=-1,
    )
    if not PAGE:
        near = gl.load(window + row * WINDOW + place, mask=place < WINDOW, other=-1)
        listed = gl.where(place < WINDOW, near, listed)
    return listed.to(gl.int32)


@gluon.jit
def named(listed, table, PAGE: gl.constexpr):
    """The row that each place names; `table` is the row's own."""
    if PAGE:
        page = gl.load(table + gl.maximum(listed, 0) // PAGE, mask=listed >= 0, other=0)
        listed = gl.where(listed >= 0, page.to(gl.int32) * PAGE + listed % PAGE, -1)
    return listed


@gluon.jit
def fetch(
    keys, name, place, ring, fresh, memory, RING, WINDOW, slice: gl.constexpr, D: gl.constexpr,
    by_key: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """Have a slice of keys copied into shared memory, zeros where unused."""
    C: gl.constexpr = 4 * D
    row = gl.maximum(name, 0).to(gl.int64)
    begin = memory + row * C
    if not PAGE:
        recent = gl.where(name < RING, ring + row * C, fresh + (row - RING) * C)
        begin = gl.where(place < WINDOW, recent, begin)
    channel = slice * D + gl.arange(0, D, layout=gl.SliceLayout(0, by_key))
    at = gl.expand_dims(begin, 1) + gl.expand_dims(channel, 0)
    async_copy.async_copy_global_to_shared(keys, at, mask=gl.expand_dims(name >= 0, 1))
    async_copy.commit_group()


@gluon.jit
def arrived(pending: gl.constexpr):
    """All but the last `pending` slices lie in shared memory, for tensor cores to read."""
    async_copy.wait_group(pending)
    hopper.fence_async_shared()
    barrier()


@gluon.jit
def shares(most_H, part_most_H):
    both_H = gl.maximum(most_H, part_most_H)
    base_H = gl.where(both_H == float("-inf"), 0.0, both_H)
    return both_H, gl.exp(most_H - base_H), gl.exp(part_most_H - base_H)


@gluon.jit
def folded(total_HD, part_HD, old_H, new_H):
    return gl.fma(total_HD, gl.expand_dims(old_H, 1), part_HD * gl.expand_dims(new_H, 1))


@gluon.jit
def finish(out_at, mixed_HD, total_H, slice: gl.constexpr, D: gl.constexpr, by_head: gl.constexpr):
    value = gl.div_rn(mixed_HD, gl.expand_dims(total_H, 1)).to(out_at.dtype.element_ty)
    channel = slice * D + gl.arange(0, D, layout=gl.SliceLayout(0, by_head))
    gl.store(out_at + gl.expand_dims(channel, 0), value)


@gluon.jit(do_not_specialize=["by_lane", "RING", "WINDOW", "LISTED"])
def rows_whole(
    q, ring, fresh, window, memory, list, table, lane, sink, out, scale, by_lane,
    RING, WINDOW, LISTED, NUM_HEADS: gl.constexpr, H: gl.constexpr, E: gl.constexpr,
    D: gl.constexpr, PLACES: gl.constexpr, PAGE: gl.constexpr, SINK: gl.constexpr,
):  # fmt: skip
    """All parts of one row and H heads."""
    C: gl.constexpr = 4 * D
    kind: gl.constexpr = q.dtype.element_ty
    by_key: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0])
    flat: gl.constexpr = gl.BlockedLayout([2], [32], [8], [0])
    by_score: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, E // 2, 16])
    by_head: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, D // 2, 16])
    by_total: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 8, 16])
    head_rows: gl.constexpr = gl.SliceLayout(1, by_head)
    q_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([H, D], kind)
    key_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([E, D], kind)
    weight_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([H, E], kind)
    ones_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([E, 16], kind)

    row = gl.program_id(1).to(gl.int64)
    first = gl.program_id(0) * H
    q0 = gl.allocate_shared_memory(kind, [H, D], q_shared)
    q1 = gl.allocate_shared_memory(kind, [H, D], q_shared)
    q2 = gl.allocate_shared_memory(kind, [H, D], q_shared)
    q3 = gl.allocate_shared_memory(kind, [H, D], q_shared)
    key0 = gl.allocate_shared_memory(kind, [E, D], key_shared)
    key1 = gl.allocate_shared_memory(kind, [E, D], key_shared)
    key2 = gl.allocate_shared_memory(kind, [E, D], key_shared)
    key3 = gl.allocate_shared_memory(kind, [E, D], key_shared)
    weights = gl.allocate_shared_memory(kind, [H, E], weight_shared)
    one = gl.full([E, 16], 1.0, kind, gl.BlockedLayout([1, 8], [16, 2], [8, 1], [1, 0]))
    ones = gl.allocate_shared_memory(kind, [E, 16], ones_shared, one)

    # Queries come with the first slice of keys.
    head = first + gl.arange(0, H, layout=gl.SliceLayout(1, by_key))
    q_at = gl.expand_dims(q + (row * NUM_HEADS + head) * C, 1)
    channel = gl.expand_dims(gl.arange(0, D, layout=gl.SliceLayout(0, by_key)), 0)
    async_copy.async_copy_global_to_shared(q0, q_at + channel)
    async_copy.async_copy_global_to_shared(q1, q_at + channel + D)
    async_copy.async_copy_global_to_shared(q2, q_at + channel + 2 * D)
    async_copy.async_copy_global_to_shared(q3, q_at + channel + 3 * D)

    own_table = table
    if PAGE:
        own_table += gl.load(lane + row) * by_lane
    place = gl.arange(0, E, layout=gl.SliceLayout(1, by_key))
    listed = listed_of(place, row, window, list, WINDOW, LISTED, PAGE)
    name = named(listed, own_table, PAGE)
    fetch(key0, name, place, ring, fresh, memory, RING, WINDOW, 0, D, by_key, PAGE)
    fetch(key1, name, place, ring, fresh, memory, RING, WINDOW, 1, D, by_key, PAGE)
    fetch(key2, name, place, ring, fresh, memory, RING, WINDOW, 2, D, by_key, PAGE)
    fetch(key3, name, place, ring, fresh, memory, RING, WINDOW, 3, D, by_key, PAGE)

    # Parts up to the last used entry.
    every = gl.arange(0, PLACES, layout=flat)
    all_listed = listed_of(every, row, window, list, WINDOW, LISTED, PAGE)
    last = gl.max(gl.where(all_listed >= 0, every + 1, 0), 0)
    stop = (last + E - 1) // E

    score_place = gl.arange(0, E, layout=gl.SliceLayout(0, by_score))
    mixed0 = gl.zeros([H, D], gl.float32, by_head)
    mixed1 = gl.zeros([H, D], gl.float32, by_head)
    mixed2 = gl.zeros([H, D], gl.float32, by_head)
    mixed3 = gl.zeros([H, D], gl.float32, by_head)
    none_HD = gl.zeros([H, D], gl.float32, by_head)
    most_H = gl.full([H], float("-inf"), gl.float32, gl.SliceLayout(1, by_score))
    total_H = gl.zeros([H], gl.float32, head_rows)
    for part in range(stop):
        # What the next part's copies begin with is on its way while this one's scores are made.
        place += E
        listed = listed_of(place, row, window, list, WINDOW, LISTED, PAGE)
        scored = listed_of(part * E + score_place, row, window, list, WINDOW, LISTED, PAGE)
        arrived(3)
        score = hopper.warpgroup_mma(
            q0, key0.permute((1, 0)), gl.zeros([H, E], gl.float32, by_score), use_acc=False,
            is_async=True,
        )  # fmt: skip
        arrived(2)
        score = hopper.warpgroup_mma(q1, key1.permute((1, 0)), score, is_async=True)
        arrived(1)
        score = hopper.warpgroup_mma(q2, key2.permute((1, 0)), score, is_async=True)
        arrived(0)
        score = hopper.warpgroup_mma(q3, key3.permute((1, 0)), score, is_async=True)
        name = named(listed, own_table, PAGE)
        score_HE = hopper.warpgroup_mma_wait(0, deps=[score])

        score_HE = gl.where(gl.expand_dims(scored >= 0, 0), score_HE * scale, float("-inf"))
        part_most_H = gl.max(score_HE, 1)
        base_H = gl.where(part_most_H == float("-inf"), 0.0, part_most_H)
        weights.store(gl.exp(score_HE - gl.expand_dims(base_H, 1)).to(kind))
        hopper.fence_async_shared()
        barrier()
        sums = hopper.warpgroup_mma(
            weights, ones, gl.zeros([H, 16], gl.float32, by_total), use_acc=False, is_async=True
        )
        part0 = hopper.warpgroup_mma(weights, key0, none_HD, use_acc=False, is_async=True)
        part1 = hopper.warpgroup_mma(weights, key1, none_HD, use_acc=False, is_async=True)
        most_H, old_H, new_H = shares(most_H, part_most_H)
        old_H = gl.convert_layout(old_H, head_rows)
        new_H = gl.convert_layout(new_H, head_rows)
        sums_HX, part_HD = hopper.warpgroup_mma_wait(1, deps=[sums, part0])
        barrier()
        fetch(key0, name, place, ring, fresh, memory, RING, WINDOW, 0, D, by_key, PAGE)
        part2 = hopper.warpgroup_mma(weights, key2, none_HD, use_acc=False, is_async=True)
        part_total_H = gl.convert_layout(gl.max(sums_HX, 1), head_rows)
        total_H = gl.fma(total_H, old_H, part_total_H * new_H)
        mixed0 = folded(mixed0, part_HD, old_H, new_H)
        part_HD, mixed0 = hopper.warpgroup_mma_wait(1, deps=[part1, mixed0])
        barrier()
        fetch(key1, name, place, ring, fresh, memory, RING, WINDOW, 1, D, by_key, PAGE)
        part3 = hopper.warpgroup_mma(weights, key3, none_HD, use_acc=False, is_async=True)
        mixed1 = folded(mixed1, part_HD, old_H, new_H)
        part_HD, mixed1 = hopper.warpgroup_mma_wait(1, deps=[part2, mixed1])
        barrier()
        fetch(key2, name, place, ring, fresh, memory, RING, WINDOW, 2, D, by_key, PAGE)
        mixed2 = folded(mixed2, part_HD, old_H, new_H)
        part_HD, mixed2 = hopper.warpgroup_mma_wait(0, deps=[part3, mixed2])
        barrier()
        fetch(key3, name, place, ring, fresh, memory, RING, WINDOW, 3, D, by_key, PAGE)
        mixed3 = folded(mixed3, part_HD, old_H, new_H)
    async_copy.wait_group(0)

    head = first + gl.arange(0, H, layout=head_rows)
    if SINK:
        sink_H = gl.load(sink + head).to(gl.float32)
        total_H += gl.exp(sink_H - gl.convert_layout(most_H, head_rows))
    out_at = gl.expand_dims(out + (row * NUM_HEADS + head) * C, 1)
    finish(out_at, mixed0, total_H, 0, D, by_head)
    finish(out_at, mixed1, total_H, 1, D, by_head)
    finish(out_at, mixed2, total_H, 2, D, by_head)
    finish(out_at, mixed3, total_H, 3, D, by_head)


def fits(q_RHC: Tensor) -> bool:
    """Whether rows of these queries run here."""
    if not q_RHC.is_cuda or torch.cuda.get_device_capability(q_RHC.device)[0] != HOPPER:
        return False
    _, heads, channels = q_RHC.shape
    return q_RHC.dtype == torch.bfloat16 and heads % HEADS == 0 and channels == CHANNELS


def launch(given: Sequence[Any], entries: int, places: int, page: int, has_sink: bool) -> None:
    """`given` is what `rows_whole` has, here and in `attend`, but for the sizes."""
    rows, heads, channels = given[0].shape
    rows_whole[(heads // HEADS, rows)](
        *given,
        NUM_HEADS=heads,
        H=HEADS,
        E=entries,
        D=channels // SLICES,
        PLACES=max(64 * WARPS, places),
        PAGE=page,
        SINK=has_sink,
        num_warps=WARPS,
    )
