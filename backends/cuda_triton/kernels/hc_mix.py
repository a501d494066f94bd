"""`hc_mix` and `hc_split`: the mixing product in fixed runs of its inner dimension, then a program
a row that adds them, does the Sinkhorn steps and, for `hc_split`, collapses the streams.

Both launches have one shape for every number of rows, but for how many rows a program of the first
has, which give each the same bits, and how many columns one of the second collapses, which is no
sum over columns. F is N * D, M the product's outputs, S runs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.products import exact_dot
from tensorfold.backends.cuda_triton.kernels.whole import whole

RUN = 256  # of F
STEP = 64
# Rows and warps of a program, and from how many rows on; either gives a row the same bits.
SOME, MANY, MANY_ROWS = (64, 4), (128, 8), 1024
FEW = 16
# The Sinkhorn steps are a chain of small sums, which one warp does without waiting for another.
WARPS = 1


@triton.jit(do_not_specialize=["num_rows"])
def mix_runs(
    x,
    fn,
    z,
    square,
    num_rows,
    F,
    M,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEP: tl.constexpr,
    RUN: tl.constexpr,
):
    """z[s, r, m] = x[r, run s] . fn[m, run s] and square[s, r] = the sum of x[r, run s]^2."""
    run = tl.program_id(0)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    output = tl.arange(0, OUTPUTS)
    step = tl.arange(0, STEP)
    here = row < num_rows
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    squares = tl.zeros((ROWS, STEP), tl.float32)
    for k in range(0, RUN, STEP):
        column = run * RUN + k + step
        inside = column < F
        x_at = x + row[:, None] * F + column[None, :]
        a = tl.load(x_at, mask=here[:, None] & inside[None, :], other=0.0)
        fn_at = fn + output[None, :] * F + column[:, None]
        b = tl.load(fn_at, mask=(output < M)[None, :] & inside[:, None], other=0.0)
        total = exact_dot(a, b, total)
        value = a.to(tl.float32)
        squares += value * value
    at = run.to(tl.int64) * num_rows + row
    z_mask = here[:, None] & (output < M)[None, :]
    tl.store(z + at[:, None] * M + output[None, :], total, mask=z_mask)
    tl.store(square + at, tl.sum(squares, 1), mask=here)


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit(do_not_specialize=["num_rows"])
def mix_rows(
    x,
    z,
    square,
    base,
    scale,
    pre_out,
    post_out,
    comb_out,
    collapsed,
    num_rows,
    D,
    num_runs,
    norm_eps,
    eps,
    iterations,
    COLLAPSE: tl.constexpr,
    N: tl.constexpr,
    RUNS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A row's runs added, and what follows; programs of one row share its columns."""
    M: tl.constexpr = 2 * N + N * N
    row = tl.program_id(0).to(tl.int64)
    run, stream = tl.arange(0, RUNS), tl.arange(0, N)
    at = run.to(tl.int64) * num_rows + row
    here = run < num_runs
    mean = tl.sum(tl.load(square + at, mask=here, other=0.0), 0) / (N * D)
    norm = 1 / tl.sqrt_rn(mean + norm_eps)
    pre_at = z + at[:, None] * M + stream[None, :]
    pre = tl.sum(tl.load(pre_at, mask=here[:, None], other=0.0), 0) * norm
    pre = pre * tl.load(scale).to(tl.float32) + tl.load(base + stream).to(tl.float32)
    pre = sigmoid(pre) + eps
    if tl.program_id(1) == 0:
        post = tl.sum(tl.load(pre_at + N, mask=here[:, None], other=0.0), 0) * norm
        post = post * tl.load(scale + 1).to(tl.float32) + tl.load(base + N + stream).to(tl.float32)
        post = 2 * sigmoid(post)
        tl.store(post_out + row * N + stream, post.to(post_out.dtype.element_ty))
        if not COLLAPSE:
            tl.store(pre_out + row * N + stream, pre.to(pre_out.dtype.element_ty))
        pair = stream[:, None] * N + stream[None, :]
        comb_at = z + at[:, None, None] * M + 2 * N + pair[None, :, :]
        comb = tl.sum(tl.load(comb_at, mask=here[:, None, None], other=0.0), 0) * norm
        comb = comb * tl.load(scale + 2).to(tl.float32)
        comb += tl.load(base + 2 * N + pair).to(tl.float32)
        comb = tl.exp(comb - tl.max(comb, 1)[:, None])
        comb = comb / tl.sum(comb, 1)[:, None] + eps
        comb = comb / (tl.sum(comb, 0)[None, :] + eps)
        for _ in range(iterations - 1):
            comb = comb / (tl.sum(comb, 1)[:, None] + eps)
            comb = comb / (tl.sum(comb, 0)[None, :] + eps)
        tl.store(comb_out + row * N * N + pair, comb.to(comb_out.dtype.element_ty))
    if COLLAPSE:
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros((COLUMNS,), tl.float32)
        for n in tl.static_range(N):
            weight = tl.sum(tl.where(stream == n, pre, 0.0), 0)
            x_at = x + (row * N + n) * D + column
            total += weight * tl.load(x_at, mask=column < D, other=0.0).to(tl.float32)
        out_at = collapsed + row * D + column
        tl.store(out_at, total.to(collapsed.dtype.element_ty), mask=column < D)


def mixed(
    x_RND: Tensor,
    fn_MF: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
    collapse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """First the collapsed row, or without `collapse` its weights; then post and comb. What is not a
    row has the format of fn."""
    x_RND, fn_MF = whole(x_RND), whole(fn_MF)
    rows, n, d = x_RND.shape
    outputs, inner = fn_MF.shape
    runs = triton.cdiv(inner, RUN)
    first = x_RND.new_empty(rows, d) if collapse else fn_MF.new_empty(rows, n)
    post_RN, comb_RNN = fn_MF.new_empty(rows, n), fn_MF.new_empty(rows, n, n)
    if not rows:
        return first, post_RN, comb_RNN
    z_SRM = x_RND.new_empty(runs, rows, outputs, dtype=torch.float32)
    square_SR = x_RND.new_empty(runs, rows, dtype=torch.float32)
    tile_rows, warps = SOME if rows < MANY_ROWS else MANY
    mix_runs[(runs, triton.cdiv(rows, tile_rows))](
        x_RND,
        fn_MF,
        z_SRM,
        square_SR,
        rows,
        inner,
        outputs,
        ROWS=tile_rows,
        OUTPUTS=max(16, triton.next_power_of_2(outputs)),
        STEP=STEP,
        RUN=RUN,
        num_warps=warps,
        num_stages=3,
    )
    columns = min(512 if rows <= FEW else 4096, triton.next_power_of_2(d))
    mix_rows[(rows, triton.cdiv(d, columns) if collapse else 1)](
        x_RND,
        z_SRM,
        square_SR,
        base_M,
        scale_3,
        first,
        post_RN,
        comb_RNN,
        first,
        rows,
        d,
        runs,
        norm_eps,
        eps,
        iterations,
        COLLAPSE=collapse,
        N=n,
        RUNS=triton.next_power_of_2(runs),
        COLUMNS=columns,
        num_warps=WARPS,
    )
    return first, post_RN, comb_RNN


def hc_mix(
    x_RND: Tensor,
    fn_MF: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return mixed(x_RND, fn_MF, base_M, scale_3, norm_eps, eps, iterations, False)
