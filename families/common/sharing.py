"""How ranks share an index of a forward's rows: places on the device, made once a forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensorfold.core.family_api import RowSplit

# Rows that a rank picks for at least: sizes of 0 and 1 are shapes of their own to a compiler.
LEAST = 2


class Sharing(NamedTuple):
    """own_S: rows that this rank picks for, of a share of fewer than two also rows that are
    nobody's. place_R: where a row's picks stand among those of all ranks, `block` rows each."""

    own_S: Tensor
    place_R: Tensor
    block: int


def sharing(split: RowSplit, device: torch.device) -> Sharing:
    counts, own = split.counts, split.own
    block = max(LEAST, *counts)
    own_S = np.zeros(max(LEAST, counts[split.rank]), dtype=np.int64)
    own_S[: counts[split.rank]] = np.arange(own.start, own.stop)
    parts = [rank * block + np.arange(count) for rank, count in enumerate(counts)]
    place_R = np.concatenate(parts)
    places = torch.from_numpy(np.concatenate([place_R, own_S]))
    # A copy out of pinned memory waits for nothing that the device still does.
    places = places.pin_memory() if device.type == "cuda" else places
    there = places.to(device, non_blocking=True)
    return Sharing(there[len(place_R) :], there[: len(place_R)], block)


def shared(
    gather: Callable[[Tensor], Tensor], made: Sharing, pick: Callable[[Tensor], Tensor]
) -> Tensor:
    """What `pick` gives of rows [S] as [S, E], of all rows [R, E]: each rank picks for its own
    share, and all are gathered at once."""
    found_SE = pick(made.own_S)
    own_BE = found_SE.new_full((made.block, found_SE.shape[1]), -1)
    own_BE[: found_SE.shape[0]] = found_SE
    return gather(own_BE).flatten(0, 1)[made.place_R]
