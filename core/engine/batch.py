"""Records to index tensors: the `Rows` of one forward.

All integers of a forward are written into one array and cross to the device at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensorfold.core.engine.state import Storage
from tensorfold.core.family_api import Rows


class Run(NamedTuple):
    """Consecutive rows of one stream: `tokens` at positions from `start` on, in `lane`."""

    tokens: Sequence[int]
    lane: int
    start: int


@lru_cache(maxsize=64)
def widths(context: int, least: int = 64) -> tuple[int, ...]:
    """The few sizes that visible tokens are rounded up to: `least`, doubled up to the context."""
    found = [least]
    while found[-1] < context:
        found.append(min(2 * found[-1], padded(context, least)))
    return tuple(found)


def width_of(seen: int, context: int) -> int:
    return next(width for width in widths(context) if width >= seen)


def padded(rows: int, tile: int) -> int:
    return -(-rows // tile) * tile


class Spans(NamedTuple):
    """Each run's lane, first batch row, number of rows and first position, int64 [B]."""

    lanes: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray
    starts: np.ndarray


def spans(runs: Sequence[Run]) -> Spans:
    return spans_of(
        [run.lane for run in runs], [len(run.tokens) for run in runs], [run.start for run in runs]
    )


def spans_of(lanes: Sequence[int], counts: Sequence[int], starts: Sequence[int]) -> Spans:
    counts_B = np.array(counts, dtype=np.int64)
    return Spans(
        lanes=np.array(lanes, dtype=np.int64),
        firsts=np.cumsum(counts_B) - counts_B,
        counts=counts_B,
        starts=np.array(starts, dtype=np.int64),
    )


def write_rows(by_row: np.ndarray, runs: Sequence[Run], own: Spans, storage: Storage) -> None:
    """Ids, lanes, positions, offsets and slots [5, R]; rows past the runs are the spare lane's."""
    write_places(by_row, own, storage)
    ids, lane, position, offset, slot = by_row
    real = int(own.counts.sum())
    tokens = chain.from_iterable([run.tokens for run in runs])
    ids[:real] = np.fromiter(tokens, dtype=np.int64, count=real)
    position[:real] = np.repeat(own.starts, own.counts) + offset[:real]
    page = storage.spec.page
    slot[:real] = (storage.table_LP[lane, position // page] * page + position % page)[:real]


def write_places(by_row: np.ndarray, own: Spans, storage: Storage) -> None:
    """Lanes and offsets of `write_rows`, and all of the rows past the runs."""
    _, lane, _, offset, slot = by_row
    real = int(own.counts.sum())
    by_row[:, real:] = 0
    lane[:real] = np.repeat(own.lanes, own.counts)
    lane[real:] = storage.spare_lane
    offset[:real] = np.arange(real) - np.repeat(own.firsts, own.counts)
    slot[real:] = storage.spare_page * storage.spec.page


def write_streams(block: np.ndarray, own: Spans, storage: Storage) -> None:
    """Lanes, firsts, counts and starts [5, B]; streams past the runs have the spare lane and no
    rows."""
    real = len(own.lanes)
    block[:4, :real] = own
    block[4] = 0
    block[:, real:] = 0
    block[0, real:] = storage.spare_lane


def build(runs: Sequence[Run], storage: Storage, *, prompt: bool, tile: int, context: int) -> Rows:
    """The rows of `runs` one after another, padded to the tile with rows of the spare lane."""
    own = spans(runs)
    total = padded(int(own.counts.sum()), tile)
    by_row = np.empty((5, total), dtype=np.int64)
    write_rows(by_row, runs, own, storage)
    device = storage.table.device

    def there(part: np.ndarray) -> Tensor:
        return torch.from_numpy(part).to(device)

    blocks: Tensor | None = None
    block_lanes: Tensor | None = None
    window_rows: Tensor | None = None
    if not prompt:
        window_rows = there(windows(own, total))
    elif storage.spec.blocks:
        blocks, block_lanes = map(there, grid_blocks(own, storage.spec.page, total))
    ids, lane, position, offset, slot = there(by_row)
    lane_B, first_B, count_B, _ = there(np.stack(own))
    return Rows(
        ids_R=ids,
        lane_R=lane,
        position_R=position,
        offset_R=offset,
        slot_R=slot,
        table_LP=storage.table,
        lane_B=lane_B,
        first_B=first_B,
        count_B=count_B,
        width=width_of(int((own.starts + own.counts).max()), context),
        rows_BW=window_rows,
        blocks_NT=blocks,
        block_lane_N=block_lanes,
    )


def with_padding(rows: Rows, storage: Storage, streams: int, blocks: int) -> Rows:
    """A prompt's rows with so many more streams and blocks, which have none of them."""
    spare, past = storage.spare_lane, rows.ids_R.shape[0]

    def more(part: Tensor, count: int, value: int) -> Tensor:
        return torch.cat([part, part.new_full((count, *part.shape[1:]), value)])

    rows = rows._replace(
        lane_B=more(rows.lane_B, streams, spare),
        first_B=more(rows.first_B, streams, 0),
        count_B=more(rows.count_B, streams, 0),
    )
    if rows.blocks_NT is None or rows.block_lane_N is None:
        return rows
    return rows._replace(
        blocks_NT=more(rows.blocks_NT, blocks, past),
        block_lane_N=more(rows.block_lane_N, blocks, spare),
    )


def windows(own: Spans, past: int) -> np.ndarray:
    """Batch rows [B, W], `past` where a window is shorter than the longest."""
    place = np.arange(int(own.counts.max()))[None]
    return np.where(place < own.counts[:, None], own.firsts[:, None] + place, past)


def grid_blocks(own: Spans, grid: int, past: int) -> tuple[np.ndarray, np.ndarray]:
    """Batch rows [N, grid] of each block at absolute multiples of the grid, and their lanes."""
    blocks, block_lanes = [], []
    for lane, first, count, start in zip(*own, strict=True):
        assert start % grid == 0, (start, grid)
        place = np.arange(padded(int(count), grid))
        rows = np.where(place < count, first + place, past).reshape(-1, grid)
        blocks.append(rows)
        block_lanes.append(np.full(len(rows), lane))
    return np.concatenate(blocks), np.concatenate(block_lanes)
