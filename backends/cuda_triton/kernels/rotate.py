"""`rotate`: a head's last pairs turn by its row's angles; what lies before them is copied."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import whole

# Values of a program: several heads, of one row or of several.
VALUES = 2048


@triton.jit(do_not_specialize=["num_heads", "by_row"])
def turn_heads(
    x,
    cos,
    sin,
    out,
    num_heads,
    by_row,
    SIZE: tl.constexpr,
    PAIRS: tl.constexpr,
    BACK: tl.constexpr,
    HEADS: tl.constexpr,
    KEPT_WIDTH: tl.constexpr,
    PAIRS_WIDTH: tl.constexpr,
):
    """Heads are numbered through all rows, `by_row` of them in each; widths are padded."""
    KEPT: tl.constexpr = SIZE - 2 * PAIRS
    head = (tl.program_id(0) * HEADS + tl.arange(0, HEADS))[:, None]
    begins = head.to(tl.int64) * SIZE
    if KEPT:
        column = tl.arange(0, KEPT_WIDTH)[None, :]
        inside = (head < num_heads) & (column < KEPT)
        kept = tl.load(x + begins + column, mask=inside)
        tl.store(out + begins + column, kept, mask=inside)
    pair = tl.arange(0, PAIRS_WIDTH)[None, :]
    inside = (head < num_heads) & (pair < PAIRS)
    angle = (head // by_row).to(tl.int64) * PAIRS + pair
    by_cos = tl.load(cos + angle, mask=inside).to(tl.float32)
    by_sin = tl.load(sin + angle, mask=inside).to(tl.float32)
    by_sin = -by_sin if BACK else by_sin
    place = (begins + KEPT + 2 * pair)[:, :, None] + tl.arange(0, 2)[None, None, :]
    a, b = tl.split(tl.load(x + place, mask=inside[:, :, None]).to(tl.float32))
    # One rounding of one product, whatever a compiler would join.
    turned = tl.join(tl.fma(a, by_cos, -(b * by_sin)), tl.fma(b, by_cos, a * by_sin))
    tl.store(out + place, turned.to(out.dtype.element_ty), mask=inside[:, :, None])


def rotate(x: Tensor, cos_RP: Tensor, sin_RP: Tensor, back: bool) -> Tensor:
    x, cos_RP, sin_RP = whole(x), whole(cos_RP), whole(sin_RP)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size, pairs = x.shape[-1], cos_RP.shape[-1]
    num_heads = x.numel() // size
    if num_heads:
        heads = max(1, VALUES // triton.next_power_of_2(size))
        turn_heads[(triton.cdiv(num_heads, heads),)](
            x,
            cos_RP,
            sin_RP,
            out,
            num_heads,
            num_heads // x.shape[0],
            SIZE=size,
            PAIRS=pairs,
            BACK=back,
            HEADS=heads,
            KEPT_WIDTH=triton.next_power_of_2(max(size - 2 * pairs, 1)),
            PAIRS_WIDTH=triton.next_power_of_2(pairs),
            num_warps=4,
        )
    return out
