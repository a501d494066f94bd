"""Where rows find and leave what a `Ring` of their stream keeps: index tensors, all integers.

A forward reads [ring, its own rows] and writes the ring after, so rows of any number pass through
a ring of any size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.family_api import Rows


def ring_sources(rows: Rows, back: int, ring: int) -> Tensor:
    """Rows of [ring, this forward's rows] of a row's last `back` positions, its own the last one.

    [R, back]; positions before the first one name whatever lies there.
    """
    lanes = rows.table_LP.shape[0]
    row_R1 = torch.arange(rows.ids_R.shape[0], device=rows.ids_R.device)[:, None]
    back_M = torch.arange(back - 1, -1, -1, device=rows.ids_R.device)
    old_RM = rows.lane_R[:, None] * ring + (rows.position_R[:, None] - back_M) % ring
    new_RM = lanes * ring + row_R1 - back_M
    return torch.where(rows.offset_R[:, None] >= back_M, new_RM, old_RM)


def ring_slots(rows: Rows, ring: int) -> Tensor:
    """A row's place in the ring; rows that later ones of this forward replace go to the spare."""
    lanes = rows.table_LP.shape[0]
    count_L = torch.zeros(lanes, dtype=torch.int64, device=rows.ids_R.device)
    count_R = count_L.index_put((rows.lane_B,), rows.count_B)[rows.lane_R]
    own_R = rows.lane_R * ring + rows.position_R % ring
    return torch.where(count_R - rows.offset_R <= ring, own_R, (lanes - 1) * ring)
