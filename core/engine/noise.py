"""The keys of rows that draw, out of seeds and positions: on the host, and on tensors."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tensorfold.core import keyed
from tensorfold.core.ops.keyed_noise import mix, signed

# Of the host's keys: numpy keeps to uint64 where both sides are.
STEP, MIX_A, MIX_B = (np.uint64(one) for one in (keyed.STEP, keyed.MIX_A, keyed.MIX_B))
# Of so many keys Python's integers are the quicker ones.
FEW = 4
THIRTY, TWENTY_SEVEN, THIRTY_ONE = (np.uint64(bits) for bits in (30, 27, 31))


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
