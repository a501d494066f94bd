"""`products` for many rows in bfloat16: programs that stay, tensor descriptors, one flat loop.

A program walks its tiles, their parts and the steps of K in a single loop, so that the next tile's
loads run beside the last one's stores. The order of every sum is that of `products`.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tensorfold.backends.cuda_triton.kernels.tiles import Tile, Weight

# Rows of tiles that share columns of a weight before the next columns' turn.
GROUP = 8
# Rows of parts that are added at once.
SLICE = 16
ALIGNED = 16  # bytes


@triton.jit
def place_of(tile, row_tiles, column_tiles, GROUP: tl.constexpr):
    """A tile's row and column, so that tiles side by side share rows and columns."""
    band = tile // (GROUP * column_tiles)
    rows_here = min(row_tiles - band * GROUP, GROUP)
    within = tile % (GROUP * column_tiles)
    return band * GROUP + within % rows_here, within // rows_here


@triton.jit
def tree_of(parts, by_part, P: tl.constexpr):
    """P parts added pairwise, neighbours first; P is a power of two."""
    if P == 1:
        total = tl.load(parts)
    else:
        left = tree_of(parts, by_part, P // 2)
        total = left + tree_of(parts + P // 2 * by_part, by_part, P // 2)
    return total


@triton.jit(do_not_specialize=["num_rows"])
def stay(
    x,
    w,
    out,
    held,
    num_rows,
    N,
    K,
    BY_K: tl.constexpr,
    APART: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    SLICE: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """x [R, P * K]; w [N, P * K], or with BY_K [P * K, N]; out [R, N], or with APART [R, P * N].

    APART: parts are products of their own. Otherwise they are added in the tree: a program keeps a
    tile's parts in its place of `held` until the last one.
    """
    program = tl.program_id(0)
    row_tiles, column_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(N, COLUMNS)
    steps = K // STEP
    LOOP: tl.constexpr = 1 if APART else P
    tiles = row_tiles * column_tiles * (P if APART else 1)
    mine = tl.cdiv(tiles - program, PROGRAMS)
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    SIZE: tl.constexpr = ROWS * COLUMNS
    held += program.to(tl.int64) * LOOP * SIZE
    tile = program - PROGRAMS
    step, part = steps - 1, LOOP - 1
    head, row, column = 0, 0, 0
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(mine * LOOP * steps):
        step = tl.where(step == steps - 1, 0, step + 1)
        if step == 0:
            part = tl.where(part == LOOP - 1, 0, part + 1)
            if part == 0:
                tile += PROGRAMS
                head = tile // (row_tiles * column_tiles)
                flat = tile % (row_tiles * column_tiles)
                row, column = place_of(flat, row_tiles, column_tiles, GROUP)
                row, column = row * ROWS, column * COLUMNS
        k = (head + part) * K + step * STEP
        a = x.load([row, k])
        if BY_K:
            b = w.load([k, column])
        else:
            b = w.load([column, k]).T
        total = tl.dot(a, b, total, input_precision="ieee")
        if step == steps - 1:
            # The compiler keeps products in flight only while `total` is stored here, and no more.
            if LOOP == 1:
                out.store([row, head * N + column], total.to(out.dtype))
            else:
                tl.store(held + part * SIZE + place, total)
            total = tl.zeros((ROWS, COLUMNS), tl.float32)
        if LOOP > 1:  # noqa: SIM102 (one is the compiler's, the other the device's)
            if (step == steps - 1) & (part == LOOP - 1):
                # Rows in a store's own order, so that a thread reads what it wrote itself.
                for some in tl.static_range(0, ROWS, SLICE):
                    at = held + (some + tl.arange(0, SLICE))[:, None] * COLUMNS
                    at += tl.arange(0, COLUMNS)[None, :]
                    sums = tree_of(at, SIZE, LOOP)
                    out.store([row + some, column], sums.to(out.dtype))


@functools.cache
def num_programs(device: torch.device) -> int:
    """Programs that are resident at once, one a multiprocessor."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def aligned(x: Tensor) -> bool:
    """Whether a matrix can be read through a descriptor."""
    size = x.element_size()
    return x.stride(1) == 1 and x.data_ptr() % ALIGNED == 0 and x.stride(0) * size % ALIGNED == 0


def fits(x_RK: Tensor, w: Weight, out_RN: Tensor, tile: Tile, apart: bool) -> bool:
    """Whether `run_many` takes this product."""
    if not x_RK.dtype == w.tensor.dtype == out_RN.dtype == torch.bfloat16:
        return False
    if w.k % tile.step or w.parts not in (1, 2, 4, 8) or (apart and w.n % tile.columns):
        return False
    return aligned(x_RK) and aligned(flat(w)) and aligned(out_RN)


def flat(w: Weight) -> Tensor:
    """All parts as one matrix: [N, P * K], or [P * K, N]."""
    if w.by_k == 1:
        return w.tensor.view(w.n, w.parts * w.k)
    return w.tensor.view(w.parts * w.k, w.n)


def run_many(x_RK: Tensor, w: Weight, out_RN: Tensor, tile: Tile, apart: bool) -> None:
    """x [R, P * K] to out [R, N] added in the tree, or with `apart` [R, P * N]."""
    rows = x_RK.shape[0]
    weight = flat(w)
    by_k = w.by_k != 1
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(w.n, tile.columns)
    programs = min(num_programs(x_RK.device), tiles * (w.parts if apart else 1))
    held = x_RK.new_empty(
        programs * w.parts * tile.rows * tile.columns if w.parts > 1 and not apart else 1,
        dtype=torch.float32,
    )
    slice_rows = tile.rows if w.parts == 1 or apart else min(tile.rows, SLICE)
    w_block = [tile.step, tile.columns] if by_k else [tile.columns, tile.step]
    stay[(programs,)](
        TensorDescriptor.from_tensor(x_RK, [tile.rows, tile.step]),
        TensorDescriptor.from_tensor(weight, w_block),
        TensorDescriptor.from_tensor(out_RN, [slice_rows, tile.columns]),
        held,
        rows,
        w.n,
        w.k,
        BY_K=by_k,
        APART=apart,
        P=w.parts,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        STEP=tile.step,
        GROUP=GROUP,
        SLICE=slice_rows,
        PROGRAMS=programs,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
