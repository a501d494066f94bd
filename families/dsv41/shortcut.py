"""Which rows of a prompt the upper layers still have to run (spec dsv41, section 3).

From the last layer that makes compressed rows on, a layer reads older rows through its window
alone. So a row can reach the one before a stop from no farther than a window a layer, and what
lies farther back ends at that layer: its compressed rows are made from what enters it. Rows of a
stream that lie before its stop by more can be left out, bit for bit.

All of it is worked out on the host, since it decides sizes. T rows leave keys, Q rows go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensorfold.core.family_api import Read
from tensorfold.families.dsv41.config import Config

# Row counts are rounded up to it: the smallest are shapes of their own to products and compilers.
TILE = 8


class Layer(NamedTuple):
    """Batch rows, ascending, of which the last may stand several times: those that come in, those
    that leave a row in the window, and those that go on (none: the forward ends here)."""

    come: np.ndarray
    keys: np.ndarray
    goes: np.ndarray


class Cut(NamedTuple):
    """A layer's rows: keys_T and goes_Q are places among those that come in, within_Q places of
    the latter among the former.

    at_T and at_Q are their batch rows, and a batch row of the keys' stands shift_Q places before
    it as those that go on see it.
    """

    keys_T: Tensor
    goes_Q: Tensor
    within_Q: Tensor
    at_T: Tensor
    at_Q: Tensor
    shift_Q: Tensor


class Shortcut(NamedTuple):
    """`cuts` by layer, as far as the forward runs.

    read_Q are the batch rows whose hidden rows are read, and last_Q their places among those that
    leave the last layer; taps_T those that the drafter takes in, and their places among those that
    enter a layer. `goes` are, on the host, the batch rows that go on from a layer.
    """

    cuts: Mapping[int, Cut]
    read_Q: Tensor
    last_Q: Tensor
    taps_T: Tensor
    entering: Mapping[int, Tensor]
    goes: Mapping[int, np.ndarray]


def reaches(config: Config) -> dict[int, int]:
    """By layer: how many rows before a stop have to leave it."""
    first = config.kv_sources[-1] if config.kv_sources else 0
    return {
        layer: 1 + (config.window - 1) * (config.layers - 1 - layer)
        for layer in range(first, config.layers)
    }


def aheads(config: Config) -> list[int]:
    """How far before a stop rows lie that end at the first of the upper layers, which compresses
    them, and at the last one, and leave there what is read of them."""
    found = list(reaches(config).values())
    return [found[-1], found[0]]


def before_stops(reads: Sequence[Read], rows: int) -> np.ndarray:
    """Batch rows that lie at most `rows` before their stream's stop, or are all read."""
    found, first = [np.empty(0, dtype=np.int64)], 0
    for read in reads:
        count = read.rows if read.every else min(read.rows, max(0, rows - read.ahead))
        found.append(np.arange(first + read.rows - count, first + read.rows))
        first += read.rows
    return np.concatenate(found)


def tiles(rows: np.ndarray) -> np.ndarray:
    """Whole tiles: the last row stands there once more, and leaves what it leaves anyway."""
    missing = -len(rows) % TILE
    return np.concatenate([rows, np.repeat(rows[-1:], missing)])


def layers(config: Config, reads: Sequence[Read], total: int) -> dict[int, Layer]:
    """The upper layers of a forward over `total` rows, from the first one that some row ends at
    and as far as any row goes on."""
    come: np.ndarray = np.arange(total)
    found = {}
    for layer, reach in reaches(config).items():
        keys = tiles(before_stops(reads, reach + config.window - 1))
        goes = tiles(before_stops(reads, reach))
        if len(goes) >= total:
            continue
        keys = keys if len(keys) < len(come) else come
        goes = goes if len(goes) < len(come) else come
        found[layer] = Layer(come, keys, goes)
        if not len(goes):
            break
        come = goes
    return found


def make(
    config: Config, reads: Sequence[Read], total: int, device: torch.device
) -> Shortcut | None:
    """None where every row goes all the way. Everything crosses to the device at once."""
    found = layers(config, reads, total)
    if not found:
        return None
    tapped = config.drafting.taps if config.drafting else ()
    taken = tiles(before_stops(reads, config.window if tapped else 0))
    read = tiles(before_stops(reads, 1))
    last = list(found.values())[-1].goes
    # Views from the beginning are others than those behind it to a compiler.
    parts: list[np.ndarray] = [np.zeros(TILE, dtype=np.int64)]
    parts += [read, np.searchsorted(last, read), taken]
    for come, keys, goes in found.values():
        within = np.searchsorted(keys, goes)
        parts += [np.searchsorted(come, keys), np.searchsorted(come, goes), within]
        parts += [keys, goes, goes - within, np.searchsorted(come, taken)]
    sizes = [len(part) for part in parts]
    places = torch.from_numpy(np.concatenate(parts))
    # A copy out of pinned memory waits for nothing that the device still does.
    places = places.pin_memory() if device.type == "cuda" else places
    _, read_Q, last_Q, taps_T, *rest = places.to(device, non_blocking=True).split(sizes)
    cuts, entering = {}, dict.fromkeys(tapped, taps_T)
    for place, layer in enumerate(found):
        *own, entering[layer] = rest[7 * place : 7 * place + 7]
        cuts[layer] = Cut(*own)
    goes_on = {layer: rows.goes for layer, rows in found.items()}
    return Shortcut(cuts, read_Q, last_Q, taps_T, entering, goes_on)
