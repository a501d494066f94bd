"""`core/keyed.py` on tensors: the same integers, and so the same noise, for many tokens at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tensorfold.core import keyed

# Of the host's keys: numpy keeps to uint64 where both sides are.
STEP, MIX_A, MIX_B = (np.uint64(one) for one in (keyed.STEP, keyed.MIX_A, keyed.MIX_B))
# Of so many keys Python's integers are the quicker ones.
FEW = 4
THIRTY, TWENTY_SEVEN, THIRTY_ONE = (np.uint64(bits) for bits in (30, 27, 31))


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


def token_steps(vocab_size: int, device: torch.device) -> Tensor:
    """What each token id adds to a row's key, int64 [V]."""
    ids = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
    return ids * signed(keyed.STEP)


def base_key(seed: int) -> int:
    """What every row key of a seed begins with, as int64."""
    return signed(keyed.mix((seed & keyed.MASK) + keyed.STEP))


def write_keys(begin_N: np.ndarray, position_N: np.ndarray, key_N: np.ndarray) -> None:
    """The `keyed.row_key` of the rows behind these positions, into int64 `key_N`, on the host.

    begin_N is uint64: `keyed.STEP` after each seed's `base_key`.
    """
    if len(key_N) <= FEW:
        given = zip(begin_N.tolist(), position_N.tolist(), strict=True)
        key_N[:] = [signed(keyed.mix(begin + position * keyed.STEP)) for begin, position in given]
        return
    x = position_N.view(np.uint64) * STEP
    x += begin_N
    x ^= x >> THIRTY
    x *= MIX_A
    x ^= x >> TWENTY_SEVEN
    x *= MIX_B
    np.bitwise_xor(x, x >> THIRTY_ONE, out=key_N.view(np.uint64))


def row_keys(base_S: Tensor, position_S: Tensor) -> Tensor:
    """`keyed.row_key` of rows at these absolute positions, from their seeds' `base_key`."""
    return mix(base_S + position_S * signed(keyed.STEP))


def token_bits(key_S: Tensor, steps_V: Tensor) -> Tensor:
    """[S, V]: the top 52 bits of every token's noise under each row's key."""
    return shift_right(mix(key_S[:, None] + steps_V), 12)


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
    uniform = (bits.double() + 0.5) * 2.0**-52
    return -log(-log(uniform))
