"""`running_sums`: runs of places one after another, each behind the sum of those before it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.whole import whole

PLACES = 256


# Widths on and off a grid compile to one kernel, which adds in one order.
@triton.jit(do_not_specialize=["num_places"])
def add_up(x, out, num_places, PLACES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    before = tl.sum(tl.zeros((PLACES,), tl.float64), 0)
    for start in range(0, num_places, PLACES):
        place = start + tl.arange(0, PLACES)
        inside = place < num_places
        value = tl.load(x + row * num_places + place, mask=inside, other=0.0)
        tl.store(out + row * num_places + place, before + tl.cumsum(value, 0), mask=inside)
        before += tl.sum(value, 0)


def running_sums(x_CH: Tensor) -> Tensor:
    x_CH = whole(x_CH)
    rows, size = x_CH.shape
    out_CH = torch.empty_like(x_CH)
    if out_CH.numel():
        add_up[(rows,)](x_CH, out_CH, size, PLACES=PLACES, num_warps=2)
    return out_CH
