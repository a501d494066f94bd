"""Hyper-connections whose streams are collapsed apart: how streams are read, written and mixed.

Source: spec dsv41 2.3. `hc_split` is this and a collapse by the same weights; here the collapse
takes the weights of the sublayer before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops import hc_split
from tensorfold.core.ops.contract import Case, OpSpec


def shape(
    x_RND: Tensor,
    fn_MF: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, n, _ = x_RND.shape
    return fn_MF.new_empty(rows, n), fn_MF.new_empty(rows, n), fn_MF.new_empty(rows, n, n)


def cases(generator: torch.Generator) -> list[Case]:
    return hc_split.cases(generator)


OP = OpSpec(
    name="hc_mix",
    schema=hc_split.OP.schema,
    reference=hc_split.mixes,
    shape=shape,
    cases=cases,
    wide=("fn_MF", "base_M", "scale_3"),
)
