"""`pick_tokens`: scores of visible pools a few rows at a time, and the tokens of the best ones."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.best import Select, best
from tensorfold.backends.cuda_triton.kernels.index_scores import (
    Index,
    given,
    rows_at_once,
    visible_scores,
)
from tensorfold.core.ops.pick_tokens import list_width


def pick_tokens(
    q_RHD: Tensor,
    weight_RH: Tensor,
    pools_SD: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    position_R: Tensor,
    top: int,
    pool: int,
    page: int,
    width: int,
) -> Tensor:
    rows, places = q_RHD.shape[0], width // pool
    entries = list_width(top, pool, width)
    list_RK = torch.empty(rows, entries, dtype=torch.int64, device=q_RHD.device)
    index = given(
        Index(q_RHD, weight_RH, pools_SD, table_LP, lane_R, position_R, 1, pool, page // pool)
    )
    at_once = rows_at_once(places)
    for first in range(0, rows, at_once):
        end = min(first + at_once, rows)
        score = visible_scores(index, first, end, places, top)
        select = Select(index.position_R[first:end], 1, pool)
        best(score, select, top, list_RK[first:end], tokens=True)
    return list_RK
