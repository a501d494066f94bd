"""Parts of a sum from every rank into every rank's memory, added in rank order by the ops' tree.

A program has a block of the sum to itself on all ranks: it puts its own part into every rank's
buffer, tells every rank so, waits to be told by each, and adds what lies in its own. Nothing is
kept from one call to the next but how often a program was here: two halves of the buffer take
turns, and a rank writes a half again when it was told that its last turn is over everywhere.
Turns are counted past the largest number and on from the least: only differences are looked at.

P ranks; a buffer is [2, P, programs, BLOCK] in float32, its flags [programs, P] in int32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Floats of a program, and programs that there is room for. Timed on two H200.
BLOCK, PROGRAMS = 1024, 512
# Looks at a flag between two at the host's memory, which is far: so many, some milliseconds, that
# none falls into a wait for a rank that is only a little later. It would be later still for all
# others then, and they for it, from one sum to the next.
LOOKS = 8192
# Lanes that look there: a thread each, so that all are told the same.
LANES = 128


@triton.jit
def tree_of_ranks(at, by_rank, mask, P: tl.constexpr):
    """As `products.tree_of`, of what other devices wrote."""
    LEFT: tl.constexpr = 4 if P > 4 else (2 if P > 2 else 1)
    if P == 1:
        total = tl.load(at, mask=mask, other=0.0, volatile=True)
    else:
        left = tree_of_ranks(at, by_rank, mask, LEFT)
        total = left + tree_of_ranks(at + LEFT * by_rank, by_rank, mask, P - LEFT)
    return total


@triton.jit(do_not_specialize=["size", "rank"])
def exchange(
    part,
    out,
    buffers,
    flags,
    gone,
    turns,
    size,
    rank,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    LOOKS: tl.constexpr,
    LANES: tl.constexpr,
):
    """out[i] = the tree of every rank's part[i].

    buffers and flags hold the addresses of every rank's, gone that of a number which is not 0 once
    nobody is to be waited for; turns [PROGRAMS] counts, and starts as the flags of its program do.
    """
    program = tl.program_id(0)
    turn = tl.load(turns + program) + 1
    inside = tl.arange(0, BLOCK)
    place = program * BLOCK + inside
    mask = place < size
    half = (turn & 1) * (P * PROGRAMS * BLOCK)
    mine = half + (rank * PROGRAMS + program) * BLOCK
    value = tl.load(part + place, mask=mask, other=0.0)
    for other in tl.static_range(P):
        theirs = tl.load(buffers + other).to(tl.pointer_type(tl.float32))
        tl.store(theirs + mine + inside, value, mask=mask)
    # Every thread's stores are before the one thread's that tells of them.
    tl.debug_barrier()
    for other in tl.static_range(P):
        told = tl.load(flags + other).to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(told + program * P + rank, turn, sem="release", scope="sys")
    heard = tl.load(flags + rank).to(tl.pointer_type(tl.int32))
    own = heard + program * P
    # Looked at by every thread, and taken as one: all of them go on together.
    nobody = tl.load(gone).to(tl.pointer_type(tl.int32)) + tl.arange(0, LANES) * 0
    for other in tl.static_range(P):
        looks = 0
        ahead = tl.atomic_add(own + other, 0, sem="acquire", scope="sys") - turn
        while ahead < 0:
            ahead = tl.atomic_add(own + other, 0, sem="acquire", scope="sys") - turn
            looks += 1
            if looks % LOOKS == 0:
                ahead = tl.where(tl.max(tl.load(nobody, volatile=True), 0) != 0, 0, ahead)
    tl.debug_barrier()
    here = tl.load(buffers + rank).to(tl.pointer_type(tl.float32))
    at = here + half + program * BLOCK + inside
    total = tree_of_ranks(at, PROGRAMS * BLOCK, mask, P)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)
    tl.store(turns + program, turn)


def buffer_words(ranks: int) -> tuple[int, int]:
    """Of the buffer and of its flags, 4 bytes each."""
    return 2 * ranks * PROGRAMS * BLOCK, PROGRAMS * ranks


def fits(part: Tensor) -> bool:
    """Whether `total` takes this many."""
    return 0 < part.numel() <= PROGRAMS * BLOCK


def total(
    part: Tensor,
    dtype: torch.dtype,
    buffers: Tensor,
    flags: Tensor,
    gone: Tensor,
    turns: Tensor,
    rank: int,
) -> Tensor:
    out = part.new_empty(part.shape, dtype=dtype)
    size = part.numel()
    exchange[(triton.cdiv(size, BLOCK),)](
        part.contiguous(),
        out,
        buffers,
        flags,
        gone,
        turns,
        size,
        rank,
        P=len(buffers),
        BLOCK=BLOCK,
        PROGRAMS=PROGRAMS,
        LOOKS=LOOKS,
        LANES=LANES,
        num_warps=LANES // 32,
    )
    return out
