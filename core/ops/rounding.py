"""Round trips through narrow formats, block by block along the last axis (spec dsv41, 2.10).

Largest values and scales of powers of two are exact, so a value's rounding depends on its own
block alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8_BLOCK = 32
FP8_MOST = 448.0
FP4_MOST = 6.0


def power_above(x: Tensor) -> Tensor:
    """The smallest power of two that is not below a positive normal x, in float32."""
    bits = x.float().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
    return (exponent << 23).view(torch.float32)


def to_fp4(x: Tensor) -> Tensor:
    """The nearest of 0, .5, 1, 1.5, 2, 3, 4 and 6 with x's sign; ties to the even code."""
    y = x.abs()
    halves = (y > 0.25).to(x.dtype) + (y >= 0.75) + (y > 1.25) + (y >= 1.75)
    wholes = (y > 2.5).to(x.dtype) + (y >= 3.5)
    return torch.copysign(0.5 * halves + wholes + 2 * (y > 5), x)


def fp8_round(x: Tensor) -> Tensor:
    """e4m3 with a power-of-two scale for each 32."""
    blocks = x.unflatten(-1, (-1, FP8_BLOCK))
    most = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = power_above(most * (1 / FP8_MOST)).to(x.dtype)
    narrow = (blocks / scale).clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)
    return (narrow.to(x.dtype) * scale).flatten(-2)


def fp4_round(x: Tensor) -> Tensor:
    """e2m1 with a power-of-two scale for each 32."""
    blocks = x.unflatten(-1, (-1, 32))
    most = blocks.abs().amax(-1, keepdim=True).clamp(min=FP4_MOST * 2.0**-126)
    scale = power_above(most / FP4_MOST).to(x.dtype)
    return (to_fp4(blocks / scale) * scale).flatten(-2)


def fp4_round_fine(x: Tensor) -> Tensor:
    """e2m1 with an e4m3 scale for each 16."""
    blocks = x.unflatten(-1, (-1, 16))
    most = blocks.abs().amax(-1, keepdim=True).clamp(min=FP4_MOST * 2.0**-9)
    scale = (most / FP4_MOST).clamp(max=FP8_MOST).to(torch.float8_e4m3fn).to(x.dtype)
    return (to_fp4(blocks / scale) * scale).flatten(-2)
