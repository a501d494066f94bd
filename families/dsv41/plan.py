"""Where a forward's rows read and write: index tensors made once and shared by all layers.

Everything here is integers and pointwise, so that one graph serves every number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensorfold.core import index_shares
from tensorfold.core.family_api import Rows, RowSplit
from tensorfold.families.common.padding import real_rows
from tensorfold.families.common.rings import ring_slots, ring_sources
from tensorfold.families.common.sharing import Sharing
from tensorfold.families.dsv41.config import PAGE, Config
from tensorfold.families.dsv41.rope import Rates, Turn, turn_at
from tensorfold.families.dsv41.shortcut import Cut
from tensorfold.families.dsv41.state import SourceState


class Window(NamedTuple):
    """A layer's window: source_RW names rows of [ring, this forward's rows], -1 before the first
    position; slot_R is where a row goes; the turn is at a row's own position. Where more rows leave
    a row in the window than look into it, slot_R and key_turn are of the former."""

    source_RW: Tensor
    slot_R: Tensor
    turn: Turn
    key_turn: Turn | None = None


class Memory(NamedTuple):
    """Compressed rows at one ratio.

    A row sees the first visible_R of them. member_RM: rows of [open ring, this forward's rows]
    that make the compressed row ending at a row; slot_R and open_R: where that row and the raw
    values go, the spare page or lane if nowhere; the turn is at the compressed row's position.
    Where more rows are compressed than look, visible_R and lane_R are of those that look. `sharing`
    is how ranks share the index of these, where they do.
    """

    visible_R: Tensor
    slot_R: Tensor
    member_RM: Tensor
    open_R: Tensor
    turn: Turn
    table_LP: Tensor
    lane_R: Tensor
    page: int
    width: int
    sharing: Sharing | None = None


class Plan(NamedTuple):
    """Of layers with the window alone (`plain`), of layers that compress, and by ratio; real_R1
    tells which rows are no padding."""

    plain: Window
    compressed: Window
    memory: Mapping[int, Memory]
    real_R1: Tensor


def memory(rows: Rows, ratio: int, *, ring: int, page_rows: int, rate_P: Tensor) -> Memory:
    """`ring` is the open ring's rows, `page_rows` the rows of the compressed buffer."""
    visible_R = (rows.position_R + 1) // ratio
    closes_R = (rows.position_R + 1) % ratio == 0
    return Memory(
        visible_R=visible_R,
        slot_R=torch.where(closes_R, rows.slot_R // ratio, page_rows - 1),
        member_RM=ring_sources(rows, ratio, ring),
        open_R=ring_slots(rows, ring),
        turn=turn_at(rows.position_R // ratio * ratio, rate_P),
        table_LP=rows.table_LP,
        lane_R=rows.lane_R,
        page=PAGE // ratio,
        width=rows.width // ratio,
    )


def window(rows: Rows, back: int, ring: int, turn: Turn) -> Window:
    source_RW = ring_sources(rows, back, ring)
    back_W = torch.arange(back - 1, -1, -1, device=rows.ids_R.device)
    return Window(
        source_RW=torch.where(rows.position_R[:, None] >= back_W, source_RW, -1),
        slot_R=ring_slots(rows, ring),
        turn=turn,
    )


def make(
    config: Config,
    rows: Rows,
    rates: Rates,
    window_LTC: Tensor,
    sources: Mapping[int, SourceState],
) -> Plan:
    """The plan of a forward, for windows as large as this one and, by ratio, such compressed
    rows."""
    plain = window(
        rows,
        config.window,
        window_LTC.shape[1],
        turn_at(rows.position_R, rates.plain_P),
    )
    by_ratio = {
        ratio: memory(
            rows,
            ratio,
            ring=1 if source.open_LTE is None else source.open_LTE.shape[1],
            page_rows=source.latents_SC.shape[0],
            rate_P=rates.compressed_P,
        )
        for ratio, source in sources.items()
    }
    turn = turn_at(rows.position_R, rates.compressed_P)
    return Plan(
        plain=plain,
        compressed=Window(plain.source_RW, plain.slot_R, turn),
        memory=by_ratio,
        real_R1=real_rows(rows),
    )


def window_of(whole: Window, cut: Cut, ring_rows: int) -> Window:
    """The window of a layer that fewer rows go through; `ring_rows` are all lanes' together."""
    source_QW = whole.source_RW[cut.at_Q]
    own_QW = source_QW >= ring_rows
    return Window(
        source_RW=torch.where(own_QW, source_QW - cut.shift_Q[:, None], source_QW),
        slot_R=whole.slot_R[cut.at_T],
        turn=whole.turn.at(cut.at_Q),
        key_turn=whole.turn.at(cut.at_T),
    )


def memory_of(whole: Memory, cut: Cut) -> Memory:
    return whole._replace(visible_R=whole.visible_R[cut.at_Q], lane_R=whole.lane_R[cut.at_Q])


def scored(config: Config, source: int, position_R: np.ndarray) -> np.ndarray:
    """How many compressed rows a source's index scores for rows at these positions: the visible
    ones, of which a restricted index leaves out whole blocks beyond the candidates."""
    visible_R = (position_R + 1) // config.ratios[source]
    if source <= config.candidate_source:
        return visible_R
    blocks_R = -(-visible_R // config.candidate_size)
    return visible_R - np.maximum(blocks_R - config.candidate_blocks, 0) * config.candidate_size


def split_of(
    config: Config, source: int, whole: RowSplit, rows: int, goes: np.ndarray | None
) -> RowSplit:
    """How ranks share a source's index: of all `rows` of a forward, or of those that go on."""
    position_R = index_shares.positions(whole.start, whole.real, rows)
    if goes is not None:
        position_R = position_R[goes]
    cost_R = scored(config, source, position_R)
    ranks = len(whole.bounds) - 1
    return whole._replace(bounds=index_shares.bounds(whole.shares, cost_R, ranks))
