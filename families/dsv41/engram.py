"""Engram: n-grams of mapped token ids name rows of large tables (spec dsv41, 2.2).

All of it is integers until the rows are fetched, so a row's names do not depend on how its stream
was cut. S shifts back (0 is the row's own token), E Engram layers, C columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensorfold.core.family_api import Rows
from tensorfold.families.common.rings import ring_slots, ring_sources
from tensorfold.families.dsv41.config import Config, Engram

SEED = 10007
MOST = 2**63 - 1


class Hashing(NamedTuple):
    """map_V the token map, pad its value for no token; factor_ES, prime_EC and first_EC."""

    map_V: Tensor
    pad: int
    factor_ES: Tensor
    prime_EC: Tensor
    first_EC: Tensor


def factors(own: Engram) -> np.ndarray:
    """Odd multipliers [E, S] whose products with a mapped id stay below 2^63."""
    below = max(1, MOST // own.compressed // 2)
    drawn = [
        np.random.default_rng(SEED * layer).integers(0, below, size=own.orders + 1, dtype=np.int64)
        for layer in own.layers
    ]
    return 2 * np.stack(drawn) + 1


def hashing(config: Config, map_V: Tensor) -> Hashing:
    own = config.engram
    assert own is not None
    prime_EC = torch.tensor(own.primes, dtype=torch.int64, device=map_V.device).flatten(1)
    return Hashing(
        map_V=map_V,
        pad=int(map_V[own.pad_id]),
        factor_ES=torch.from_numpy(factors(own)).to(map_V.device),
        prime_EC=prime_EC,
        first_EC=prime_EC.cumsum(1) - prime_EC,
    )


def look_up(config: Config, own: Hashing, rows: Rows, ring_LT1: Tensor) -> Tensor:
    """A forward's `names`, out of the ring of its streams' ids, which takes its rows' own."""
    ring, ring_S = ring_LT1.shape[1], ring_LT1.view(-1)
    source_RS = ring_sources(rows, own.factor_ES.shape[1], ring).flip(1)
    ids_RS = torch.cat([ring_S, rows.ids_R])[source_RS]
    ring_S.index_copy_(0, ring_slots(rows, ring), rows.ids_R)
    return names(config, own, ids_RS, rows.position_R)


def names(config: Config, own: Hashing, ids_RS: Tensor, position_R: Tensor) -> Tensor:
    """Table rows [R, E, C] of each row's n-grams; ids_RS are the ids at position - s.

    A position before the first one, or an image token, blocks itself and all before it.
    """
    shifts = ids_RS.shape[1]
    back_S = torch.arange(shifts, device=ids_RS.device)
    closed_RS = (back_S > position_R[:, None]) | (ids_RS == config.image_id)
    blocked_RS = closed_RS.cumsum(1) > 0
    # What lies before the first position is no id: it must not be looked up.
    value_RS = own.map_V[torch.where(blocked_RS, 0, ids_RS)]
    value_RS = torch.where(blocked_RS, own.pad, value_RS)
    rolled_RE = value_RS[:, :1] * own.factor_ES[:, 0]
    heads = own.prime_EC.shape[1] // (shifts - 1)
    by_order = []
    for shift in range(1, shifts):
        rolled_RE = rolled_RE ^ (value_RS[:, shift, None] * own.factor_ES[:, shift])
        prime_EH = own.prime_EC[:, (shift - 1) * heads : shift * heads]
        by_order.append(rolled_RE[..., None] % prime_EH)
    return torch.cat(by_order, -1) + own.first_EC


class Table(NamedTuple):
    """One layer's rows on the host, as they are stored; scale has a power of two for each 32."""

    value_SD: Tensor
    scale: Tensor | None = None

    def touch(self, name_N: Tensor) -> None:
        """Have the system read these rows into its memory: both ends of each, of every part."""
        for part in (self.value_SD, self.scale):
            if part is not None:
                byte_SB = part.view(torch.uint8)
                byte_SB.select(1, 0).index_select(0, name_N)
                byte_SB.select(1, -1).index_select(0, name_N)

    def fetch(self, name_RC: Tensor, like: Tensor) -> Tensor:
        """Named rows [R, C * D], in the device and dtype of `like`."""
        name = name_RC.flatten().to(self.value_SD.device)
        rows = self.value_SD.index_select(0, name).to(like.dtype)
        if self.scale is not None:
            power = torch.exp2(self.scale.index_select(0, name).to(like.dtype) - 127)
            rows = rows.unflatten(-1, (power.shape[-1], -1)) * power[..., None]
        return rows.reshape(name_RC.shape[0], -1).to(like.device)
