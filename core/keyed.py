"""Sampling noise as a function of (seed, absolute position, token id) alone.

Integers first (a 64-bit mix), then a Gumbel value through a logarithm made of IEEE additions,
multiplications and divisions in float64 only: no library call whose last bit depends on a vector
width, so that every implementation that repeats these steps gets these bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

MASK = (1 << 64) - 1
# splitmix64's increment and multipliers (Steele, Lea, Flood 2014).
STEP = 0x9E3779B97F4A7C15
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
# Coefficients of atanh(s) / s in powers of s * s, highest first; |s| <= 0.1716 here.
SERIES = tuple(1.0 / (2 * power + 1) for power in range(11, -1, -1))
LN2 = 0.6931471805599453
SQRT_HALF = 0.7071067811865476


def mix(value: int) -> int:
    """splitmix64's finaliser: a bijection of 64-bit integers."""
    value &= MASK
    value = ((value ^ (value >> 30)) * MIX_A) & MASK
    value = ((value ^ (value >> 27)) * MIX_B) & MASK
    return value ^ (value >> 31)


def row_key(seed: int, position: int) -> int:
    """The 64-bit key of one row: every token's noise at this position derives from it."""
    return mix(mix((seed & MASK) + STEP) + position * STEP)


def token_bits(key: int, token: int) -> int:
    """The top 52 bits of a token's 64-bit noise (52, so that a half can be added exactly)."""
    return mix(key + (token + 1) * STEP) >> 12


def log(value: float) -> float:
    """Natural logarithm of a positive normal float64, by basic IEEE operations only."""
    mantissa, exponent = math.frexp(value)
    if mantissa < SQRT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    total = SERIES[0]
    for coefficient in SERIES[1:]:
        total = total * square + coefficient
    return exponent * LN2 + 2.0 * s * total


def gumbel(key: int, token: int) -> float:
    """Standard Gumbel noise of a token under a row's key: -log(-log(u)), u in (0, 1)."""
    uniform = (token_bits(key, token) + 0.5) * 2.0**-52
    return -log(-log(uniform))


def derived_seed(prompt: bytes) -> int:
    """The seed of a request that names none: a repeated prompt repeats its reply. The prompt's ids
    are in decimal, joined by commas."""
    return int.from_bytes(hashlib.sha256(b"seed:" + prompt).digest()[:8], "little", signed=True)


def sibling_seed(seed: int, index: int) -> int:
    """The seed of reply `index` of a request with n > 1; index 0 keeps the seed itself."""
    if index == 0:
        return seed
    mixed = mix((seed & MASK) ^ mix(index * STEP))
    return mixed - (1 << 64) if mixed >> 63 else mixed


def token_sha256(tokens: Sequence[int]) -> str:
    """SHA-256 over token ids in decimal, joined by commas: the receipt's hash."""
    return text_sha256(",".join(map(str, tokens)).encode())


def text_sha256(text: bytes) -> str:
    """`token_sha256` of ids that are there in decimal, joined by commas."""
    return hashlib.sha256(text).hexdigest()
