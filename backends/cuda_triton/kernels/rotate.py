"""`rotate`: a head's last pairs turn by its row's angles; what lies before them is copied."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import whole

# Values of a program: several heads, of one row or of several.
VALUES = 4096


@triton.jit(do_not_specialize=["num_heads", "by_row"])
def turn_heads(
    x,
    cos,
    sin,
    out,
    num_heads,
    by_row,
    size,
    PAIRS: tl.constexpr,
    BACK: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Heads are numbered through all rows, `by_row` of them in each."""
    head = (tl.program_id(0) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    column = tl.arange(0, SIZE)
    inside = (head < num_heads)[:, None] & (column < size)[None, :]
    start = size - 2 * PAIRS
    turned = inside & (column >= start)[None, :]
    begins = (head * size)[:, None]
    value = tl.load(x + begins + column[None, :], mask=inside, other=0.0).to(tl.float32)
    beside = start + ((column - start) ^ 1)
    other = tl.load(x + begins + beside[None, :], mask=turned, other=0.0).to(tl.float32)
    angle = (head // by_row * PAIRS)[:, None] + ((column - start) // 2)[None, :]
    by_cos = tl.load(cos + angle, mask=turned, other=1.0).to(tl.float32)
    by_sin = tl.load(sin + angle, mask=turned, other=0.0).to(tl.float32)
    # The first of a pair takes the other's share away, and the second adds it; back, they change.
    first = ((column - start) % 2 == 0)[None, :]
    by_sin = tl.where(first, by_sin, -by_sin) if BACK else tl.where(first, -by_sin, by_sin)
    # One rounding of one product, whatever a compiler would join.
    result = tl.where(turned, tl.fma(value, by_cos, other * by_sin), value)
    tl.store(out + begins + column[None, :], result.to(out.dtype.element_ty), mask=inside)


def rotate(x: Tensor, cos_RP: Tensor, sin_RP: Tensor, back: bool) -> Tensor:
    x, cos_RP, sin_RP = whole(x), whole(cos_RP), whole(sin_RP)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size, pairs = x.shape[-1], cos_RP.shape[-1]
    num_heads = x.numel() // size
    if num_heads:
        padded = triton.next_power_of_2(size)
        heads = max(1, VALUES // padded)
        turn_heads[(triton.cdiv(num_heads, heads),)](
            x,
            cos_RP,
            sin_RP,
            out,
            num_heads,
            num_heads // x.shape[0],
            size,
            PAIRS=pairs,
            BACK=back,
            HEADS=heads,
            SIZE=padded,
            num_warps=8,
        )
    return out
