"""Where a forward's rows read and write: index tensors made once and shared by all layers.

Everything here is integers and pointwise, so that one graph serves every number of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.family_api import Rows
from tensorfold.core.ops.pick_tokens import list_width
from tensorfold.families.common.padding import real_rows
from tensorfold.families.common.rings import ring_slots, ring_sources
from tensorfold.families.common.sharing import Sharing
from tensorfold.families.glm53.config import GRID, Config


class Plan(NamedTuple):
    """Index tensors of one forward (int64); legend as in `Rows`.

    source_RT: rows of [history, u] under a row's convolution taps. pool_source_RM: rows of
    [tail, this forward's rows] that make the pool ending at a row; pool_slot_R and tail_slot_R:
    where the pool and the row go, the spare page or lane if nowhere. dense_RK: token lists when
    no row may drop a key, else none. real_R1: which rows are no padding. `sharing` is how ranks
    share the index, where they do.
    """

    source_RT: Tensor
    history_BH: Tensor
    pool_source_RM: Tensor
    pool_slot_R: Tensor
    tail_slot_R: Tensor
    dense_RK: Tensor | None
    real_R1: Tensor
    sharing: Sharing | None = None


def history_sources(rows: Rows, kept_B: Tensor, history: int) -> Tensor:
    """Rows of [history, u] that are the convolution's history once kept_B rows count, [B, H]."""
    lanes = rows.table_LP.shape[0]
    place_BH = kept_B[:, None] + torch.arange(history, device=kept_B.device)
    old_BH = rows.lane_B[:, None] * history + place_BH
    new_BH = lanes * history + rows.first_B[:, None] + place_BH - history
    return torch.where(place_BH < history, old_BH, new_BH)


def conv_sources(rows: Rows, taps: int) -> Tensor:
    lanes, history = rows.table_LP.shape[0], taps - 1
    row_R1 = torch.arange(rows.ids_R.shape[0], device=rows.ids_R.device)[:, None]
    back_T = torch.arange(history, -1, -1, device=rows.ids_R.device)
    offset_R1 = rows.offset_R[:, None]
    old_RT = rows.lane_R[:, None] * history + history + offset_R1 - back_T
    new_RT = lanes * history + row_R1 - back_T
    return torch.where(offset_R1 >= back_T, new_RT, old_RT)


def dense_limit(config: Config) -> int:
    """Most visible tokens of a row that keeps them all whatever the index says."""
    return config.index_top * config.pool + config.pool - 1


def dense_lists(config: Config, rows: Rows) -> Tensor | None:
    """Lists of every visible token, or none if a row of this forward may drop keys."""
    if rows.width > dense_limit(config):
        return None
    width = list_width(config.index_top, config.pool, rows.width)
    token_K = torch.arange(width, device=rows.ids_R.device)
    return torch.where(token_K <= rows.position_R[:, None], token_K, -1)


def make(config: Config, rows: Rows, *, tail: int, pool_slots: int) -> Plan:
    """The plan of a forward; `tail` is the ring's rows, `pool_slots` the pool buffer's."""
    closes_R = (rows.position_R + 1) % config.pool == 0
    assert GRID % config.pool == 0, config.pool
    return Plan(
        source_RT=conv_sources(rows, config.conv),
        history_BH=history_sources(rows, rows.count_B, config.conv - 1),
        pool_source_RM=ring_sources(rows, config.pool, tail),
        pool_slot_R=torch.where(closes_R, rows.slot_R // config.pool, pool_slots - 1),
        tail_slot_R=ring_slots(rows, tail),
        dense_RK=dense_lists(config, rows),
        real_R1=real_rows(rows),
    )
