"""Rows that belong to nobody, and what is saved on them."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.family_api import Rows

# A pick of no expert: ops add nothing for it, and read nothing.
NO_EXPERT = -1


def real_rows(rows: Rows) -> Tensor:
    """Which rows are a stream's, [R, 1]: padding is of the spare lane."""
    return (rows.lane_R != rows.table_LP.shape[0] - 1)[:, None]


def of_real_rows(ids_RK: Tensor, real_R1: Tensor) -> Tensor:
    """Picks of experts; padding rows pick none, so that no weight is read for them alone."""
    return torch.where(real_R1, ids_RK, NO_EXPERT)
