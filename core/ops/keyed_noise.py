"""`core/keyed.py` on tensors: the same integers, and so the same noise, for many tokens at once."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core import keyed


def signed(value: int) -> int:
    """A 64-bit pattern as the int64 that torch holds it in."""
    value &= keyed.MASK
    return value - (1 << 64) if value >> 63 else value


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of int64 patterns."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    x = (x ^ shift_right(x, 30)) * signed(keyed.MIX_A)
    x = (x ^ shift_right(x, 27)) * signed(keyed.MIX_B)
    return x ^ shift_right(x, 31)


def token_bits(key_N: Tensor, id_NK: Tensor) -> Tensor:
    """[N, K]: the top 52 bits of tokens' noise under each row's key."""
    return shift_right(mix(key_N[:, None] + (id_NK + 1) * signed(keyed.STEP)), 12)


def uniform(bits: Tensor) -> Tensor:
    """52-bit integers as float64 in (0, 1)."""
    return (bits.double() + 0.5) * 2.0**-52


def log(x: Tensor) -> Tensor:
    """`keyed.log`, step by step: basic IEEE operations in float64."""
    mantissa, exponent = torch.frexp(x)
    low = mantissa < keyed.SQRT_HALF
    mantissa = torch.where(low, mantissa * 2.0, mantissa)
    exponent = torch.where(low, exponent - 1, exponent).double()
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    total = torch.full_like(s, keyed.SERIES[0])
    for coefficient in keyed.SERIES[1:]:
        total = total * square + coefficient
    return exponent * keyed.LN2 + 2.0 * s * total


def gumbel(bits: Tensor) -> Tensor:
    """Gumbel noise of 52-bit integers, float64; equal to `keyed.gumbel` bit for bit."""
    return -log(-log(uniform(bits)))
