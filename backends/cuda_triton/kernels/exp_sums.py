"""`exp_sums`: a row is summed run by run, and the runs of its width then."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import whole

TOKENS = 1024


@triton.jit
def raise_runs(x, most, out, sums, num_tokens, num_runs, TOKENS: tl.constexpr):
    row, run = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = run * TOKENS + tl.arange(0, TOKENS)
    inside = token < num_tokens
    value = tl.load(x + row * num_tokens + token, mask=inside, other=0.0).to(tl.float64)
    raised = tl.exp(value - tl.load(most + row).to(tl.float64))
    tl.store(out + row * num_tokens + token, raised.to(out.dtype.element_ty), mask=inside)
    tl.store(sums + row * num_runs + run, tl.sum(tl.where(inside, raised, 0.0), 0))


@triton.jit
def add_runs(sums, total, num_runs, RUNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    run = tl.arange(0, RUNS)
    value = tl.load(sums + row * num_runs + run, mask=run < num_runs, other=0.0)
    tl.store(total + row, tl.sum(value, 0).to(total.dtype.element_ty))


def exp_sums(x_SV: Tensor, most_S: Tensor) -> tuple[Tensor, Tensor]:
    x_SV, most_S = whole(x_SV), whole(most_S)
    rows, size = x_SV.shape
    runs = triton.cdiv(size, TOKENS)
    out_SV, total_S = torch.empty_like(x_SV), x_SV.new_empty(rows)
    if rows:
        sums_SR = x_SV.new_empty(rows, runs, dtype=torch.float64)
        raise_runs[(rows, runs)](
            x_SV, most_S, out_SV, sums_SR, size, runs, TOKENS=TOKENS, num_warps=4
        )
        add_runs[(rows,)](sums_SR, total_S, runs, RUNS=triton.next_power_of_2(runs), num_warps=4)
    return out_SV, total_S
