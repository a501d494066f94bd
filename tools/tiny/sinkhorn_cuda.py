"""The Sinkhorn projection of hyper.py as one kernel forward and one backward.

Written for 4 streams. The forward keeps every half-step's matrix; the backward walks them from
the last: for c = a / (sum(a) + eps), the gradient of a is (dc - sum(dc c)) / (sum(a) + eps).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64


@triton.jit
def balance_kernel(z_ptr, out_ptr, steps_ptr, rows, eps, HALVES: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * 16 + tl.arange(0, 16)[None, :]
    live = (row < rows)[:, None]
    z = tl.reshape(tl.load(z_ptr + at, mask=live, other=0.0), (BLOCK, 4, 4))
    e = tl.exp(z - tl.max(z, 2, keep_dims=True))
    c = e / tl.sum(e, 2, keep_dims=True)
    tl.store(steps_ptr + at, tl.reshape(c, (BLOCK, 16)), mask=live)
    c += eps
    for half in tl.static_range(HALVES):
        c = c / (tl.sum(c, 1 + half % 2, keep_dims=True) + eps)
        tl.store(steps_ptr + (half + 1) * rows * 16 + at, tl.reshape(c, (BLOCK, 16)), mask=live)
    tl.store(out_ptr + at, tl.reshape(c, (BLOCK, 16)), mask=live)


@triton.jit
def unbalance_kernel(
    grad_ptr, steps_ptr, out_ptr, rows, eps, HALVES: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * 16 + tl.arange(0, 16)[None, :]
    live = (row < rows)[:, None]
    d = tl.reshape(tl.load(grad_ptr + at, mask=live, other=0.0), (BLOCK, 4, 4))
    last = tl.load(steps_ptr + HALVES * rows * 16 + at, mask=live, other=0.25)
    c = tl.reshape(last, (BLOCK, 4, 4))
    for back in tl.static_range(HALVES):
        from_here = steps_ptr + (HALVES - 1 - back) * rows * 16
        a = tl.reshape(tl.load(from_here + at, mask=live, other=0.25), (BLOCK, 4, 4))
        soft = a
        if back == HALVES - 1:
            a += eps
        total = tl.sum(a, 1 + (HALVES - 1 - back) % 2, keep_dims=True) + eps
        d = (d - tl.sum(d * c, 1 + (HALVES - 1 - back) % 2, keep_dims=True)) / total
        c = soft
    d = c * (d - tl.sum(d * c, 2, keep_dims=True))
    tl.store(out_ptr + at, tl.reshape(d, (BLOCK, 16)), mask=live)


@torch.library.custom_op("tensorfold_tiny::balance", mutates_args=())
def balance(logits: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
    """Doubly stochastic matrices of logits [..., 4, 4], fp32, and the half-steps to them."""
    logits = logits.contiguous()
    rows, halves = logits.numel() // 16, 2 * iterations - 1
    out = torch.empty_like(logits)
    steps = logits.new_empty((halves + 1, rows, 16))
    grid = (triton.cdiv(rows, BLOCK),)
    balance_kernel[grid](logits, out, steps, rows, eps, HALVES=halves, BLOCK=BLOCK)
    return out, steps


@balance.register_fake
def _(logits: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
    halves = 2 * iterations - 1
    steps = logits.new_empty((halves + 1, logits.numel() // 16, 16))
    return torch.empty_like(logits, memory_format=torch.contiguous_format), steps


@torch.library.custom_op("tensorfold_tiny::unbalance", mutates_args=())
def unbalance(grad: Tensor, steps: Tensor, iterations: int, eps: float) -> Tensor:
    """The gradient of `balance`'s logits from that of its result."""
    grad = grad.contiguous()
    rows, halves = grad.numel() // 16, 2 * iterations - 1
    out = torch.empty_like(grad)
    grid = (triton.cdiv(rows, BLOCK),)
    unbalance_kernel[grid](grad, steps, out, rows, eps, HALVES=halves, BLOCK=BLOCK)
    return out


@unbalance.register_fake
def _(grad: Tensor, steps: Tensor, iterations: int, eps: float) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _keep(ctx, inputs, output) -> None:
    ctx.iterations, ctx.eps = inputs[1:]
    ctx.save_for_backward(output[1])


def _backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
    (steps,) = ctx.saved_tensors
    return unbalance(grad, steps, ctx.iterations, ctx.eps), None, None


balance.register_autograd(_backward, setup_context=_keep)
