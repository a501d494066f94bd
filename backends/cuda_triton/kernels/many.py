"""`products` for many rows in bfloat16: programs that stay, and tensor descriptors.

The order of every sum is that of `products`.
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
ALIGNED = 16  # bytes
# Formats of a product's sums.
OUT = (torch.bfloat16, torch.float32)


@triton.jit
def place_of(tile, row_tiles, column_tiles, GROUP: tl.constexpr):
    """A tile's row and column, so that tiles side by side share rows and columns."""
    band = tile // (GROUP * column_tiles)
    rows_here = min(row_tiles - band * GROUP, GROUP)
    within = tile % (GROUP * column_tiles)
    return band * GROUP + within % rows_here, within // rows_here


@triton.jit(do_not_specialize=["num_rows"])
def stay(
    x,
    w,
    out,
    num_rows,
    N,
    K,
    BY_K: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """P products side by side: x [R, P * K], w [N, P * K] or with BY_K [P * K, N], out [R, P * N].

    One flat loop over tiles and steps, so that a tile's loads run beside the last one's stores.
    """
    program = tl.program_id(0)
    row_tiles, column_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(N, COLUMNS)
    steps = K // STEP
    tile = program - PROGRAMS
    step = steps - 1
    part, row, column = 0, 0, 0
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(tl.cdiv(row_tiles * column_tiles * P - program, PROGRAMS) * steps):
        step = tl.where(step == steps - 1, 0, step + 1)
        if step == 0:
            tile += PROGRAMS
            part = tile // (row_tiles * column_tiles)
            flat = tile % (row_tiles * column_tiles)
            row, column = place_of(flat, row_tiles, column_tiles, GROUP)
            row, column = row * ROWS, column * COLUMNS
        k = part * K + step * STEP
        a = x.load([row, k])
        if BY_K:
            b = w.load([k, column])
        else:
            b = w.load([column, k]).T
        total = tl.dot(a, b, total, input_precision="ieee")
        if step == steps - 1:
            # The compiler keeps products in flight only while `total` is stored here, and no more.
            out.store([row, part * N + column], total.to(out.dtype))
            total = tl.zeros((ROWS, COLUMNS), tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def stay_parts(
    x,
    w,
    out,
    held,
    num_rows,
    N,
    K,
    BY_K: tl.constexpr,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """2, 4 or 8 parts of x [R, P * K] and w [N, P * K] or [P * K, N], added in the tree: [R, N].

    Two neighbours run at once. Sums of two and of four parts wait for their neighbour in a
    program's own place of `held`.
    """
    program = tl.program_id(0)
    row_tiles, column_tiles = tl.cdiv(num_rows, ROWS), tl.cdiv(N, COLUMNS)
    SIZE: tl.constexpr = ROWS * COLUMNS
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    twos = held + program.to(tl.int64) * 2 * SIZE + place
    fours = twos + SIZE
    for tile in range(program, row_tiles * column_tiles, PROGRAMS):
        row, column = place_of(tile, row_tiles, column_tiles, GROUP)
        row, column = row * ROWS, column * COLUMNS
        for pair in tl.static_range(P // 2):
            left = tl.zeros((ROWS, COLUMNS), tl.float32)
            right = tl.zeros((ROWS, COLUMNS), tl.float32)
            for k in range(2 * pair * K, (2 * pair + 1) * K, STEP):
                a = x.load([row, k])
                c = x.load([row, k + K])
                if BY_K:
                    b = w.load([k, column])
                    d = w.load([k + K, column])
                else:
                    b = w.load([column, k]).T
                    d = w.load([column, k + K]).T
                left = tl.dot(a, b, left, input_precision="ieee")
                right = tl.dot(c, d, right, input_precision="ieee")
            total = left + right
            tl.debug_barrier()
            if P > 2 and pair % 2 == 0:
                tl.store(twos, total)
            else:
                if P > 2:
                    total = tl.load(twos) + total
                if P > 4 and pair % 4 == 1:
                    tl.store(fours, total)
                else:
                    if P > 4:
                        total = tl.load(fours) + total
                    out.store([row, column], total.to(out.dtype))


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
    if not x_RK.dtype == w.tensor.dtype == torch.bfloat16 or out_RN.dtype not in OUT:
        return False
    if w.k % tile.step or (w.n % tile.columns if apart else w.parts not in (1, 2, 4, 8)):
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
    by_k = w.by_k != 1
    added = w.parts > 1 and not apart
    # However many tiles there are: a number that followed them would be a kernel for each.
    programs = num_programs(x_RK.device)
    size = programs * 2 * tile.rows * tile.columns if added else 0
    held = (x_RK.new_empty(size, dtype=torch.float32),) if added else ()
    kernel = stay_parts if added else stay
    w_block = [tile.step, tile.columns] if by_k else [tile.columns, tile.step]
    kernel[(programs,)](
        TensorDescriptor.from_tensor(x_RK, [tile.rows, tile.step]),
        TensorDescriptor.from_tensor(flat(w), w_block),
        TensorDescriptor.from_tensor(out_RN, [tile.rows, tile.columns]),
        *held,
        rows,
        w.n,
        w.k,
        BY_K=by_k,
        P=w.parts,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        STEP=tile.step,
        GROUP=GROUP,
        PROGRAMS=programs,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
