"""`core/keyed.py` step by step. What is exact here is compiled without joined roundings."""

from __future__ import annotations

import triton
import triton.language as tl

from tensorfold.core import keyed

STEP = tl.constexpr(keyed.STEP)
MIX_A = tl.constexpr(keyed.MIX_A)
MIX_B = tl.constexpr(keyed.MIX_B)
SERIES = tl.constexpr(keyed.SERIES)
TERMS = tl.constexpr(len(keyed.SERIES))
LN2 = tl.constexpr(keyed.LN2)
SQRT_HALF = tl.constexpr(keyed.SQRT_HALF)
UNIT = tl.constexpr(2.0**-52)
# A float64's mantissa, and the exponent that puts it between a half and one.
MANTISSA = tl.constexpr((1 << 52) - 1)
HALF = tl.constexpr(1022 << 52)


@triton.jit
def uniform(key, token):
    """The uniform numbers of tokens under keys, both int64: float64 in (0, 1)."""
    x = key.to(tl.uint64, bitcast=True) + (token + 1).to(tl.uint64, bitcast=True) * STEP
    x = (x ^ (x >> 30)) * MIX_A
    x = (x ^ (x >> 27)) * MIX_B
    x = x ^ (x >> 31)
    return ((x >> 12).to(tl.int64, bitcast=True).to(tl.float64) + 0.5) * UNIT


@triton.jit
def log(x):
    """`keyed.log` of positive normal float64."""
    bits = x.to(tl.int64, bitcast=True)
    mantissa = ((bits & MANTISSA) | HALF).to(tl.float64, bitcast=True)
    exponent = ((bits >> 52) - 1022).to(tl.float64)
    low = mantissa < SQRT_HALF
    mantissa = tl.where(low, mantissa * 2.0, mantissa)
    exponent = tl.where(low, exponent - 1.0, exponent)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    total = tl.full(s.shape, SERIES[0], tl.float64)
    for term in tl.static_range(1, TERMS):
        total = total * square + SERIES[term]
    return exponent * LN2 + 2.0 * s * total
