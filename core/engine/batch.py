"""Records to index tensors: the `Rows` of one forward.

All integers of a forward are written into one array and cross to the device at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tensorfold.core.engine.state import Storage
from tensorfold.core.family_api import Rows


class Run(NamedTuple):
    """Consecutive rows of one stream: `tokens` at positions from `start` on, in `lane`."""

    tokens: Sequence[int]
    lane: int
    start: int


def widths(context: int, least: int = 64) -> list[int]:
    """The few sizes that visible tokens are rounded up to: `least`, doubled up to the context."""
    found = [least]
    while found[-1] < context:
        found.append(min(2 * found[-1], padded(context, least)))
    return found


def width_of(seen: int, context: int) -> int:
    return next(width for width in widths(context) if width >= seen)


def padded(rows: int, tile: int) -> int:
    return -(-rows // tile) * tile


def build(runs: Sequence[Run], storage: Storage, *, prompt: bool, tile: int, context: int) -> Rows:
    """The rows of `runs` one after another, padded to the tile with rows of the spare lane."""
    counts = np.array([len(run.tokens) for run in runs], dtype=np.int64)
    starts = np.array([run.start for run in runs], dtype=np.int64)
    lanes = np.array([run.lane for run in runs], dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    real = int(counts.sum())
    total = padded(real, tile)
    by_row = np.zeros((5, total), dtype=np.int64)
    ids, lane, position, offset, slot = by_row
    lane[real:] = storage.spare_lane
    ids[:real] = [token for run in runs for token in run.tokens]
    lane[:real] = np.repeat(lanes, counts)
    offset[:real] = np.arange(real) - np.repeat(firsts, counts)
    position[:real] = np.repeat(starts, counts) + offset[:real]
    page = storage.spec.page
    slot[:] = storage.table_LP[lane, position // page] * page + position % page
    rows_t = torch.from_numpy(by_row)
    streams_t = torch.from_numpy(np.stack([lanes, firsts, counts]))
    blocks: torch.Tensor | None = None
    block_lanes: torch.Tensor | None = None
    window_rows: torch.Tensor | None = None
    if not prompt:
        window_rows = torch.from_numpy(windows(firsts, counts, total))
    elif storage.spec.blocks:
        cut = grid_blocks(starts, firsts, counts, lanes, page, total)
        blocks, block_lanes = (torch.from_numpy(part) for part in cut)
    return Rows(
        ids_R=rows_t[0],
        lane_R=rows_t[1],
        position_R=rows_t[2],
        offset_R=rows_t[3],
        slot_R=rows_t[4],
        table_LP=torch.from_numpy(storage.table_LP.copy()),
        lane_B=streams_t[0],
        first_B=streams_t[1],
        count_B=streams_t[2],
        width=width_of(int((starts + counts).max()), context),
        rows_BW=window_rows,
        blocks_NT=blocks,
        block_lane_N=block_lanes,
    )


def windows(firsts: np.ndarray, counts: np.ndarray, past: int) -> np.ndarray:
    """Batch rows [B, W], `past` where a window is shorter than the longest."""
    place = np.arange(int(counts.max()))[None]
    return np.where(place < counts[:, None], firsts[:, None] + place, past)


def grid_blocks(
    starts: np.ndarray,
    firsts: np.ndarray,
    counts: np.ndarray,
    lanes: np.ndarray,
    grid: int,
    past: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Batch rows [N, grid] of each block at absolute multiples of the grid, and their lanes."""
    blocks, block_lanes = [], []
    for start, first, count, lane in zip(starts, firsts, counts, lanes, strict=True):
        assert start % grid == 0, (start, grid)
        place = np.arange(padded(int(count), grid))
        rows = np.where(place < count, first + place, past).reshape(-1, grid)
        blocks.append(rows)
        block_lanes.append(np.full(len(rows), lane))
    return np.concatenate(blocks), np.concatenate(block_lanes)
