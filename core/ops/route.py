"""Which experts a row runs, and with what weights (spec glm53 2.7)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal
from tensorfold.core.ops.hc_split import sigmoid


def reference(
    logit_RE: Tensor, bias_E: Tensor, top: int, scale: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    """Expert ids [R, top], ascending, and their weights [R, top].

    The best of sigmoid(logit) + bias are chosen, ties to the lowest id; the weights are the
    sigmoids alone, made to sum to `scale` (or times `scale` without `normalise`), summed in
    ascending id.
    """
    chance_RE = sigmoid(logit_RE)
    order_RE = torch.sort(chance_RE + bias_E, dim=-1, descending=True, stable=True).indices
    ids_RK = order_RE[:, :top].sort(-1).values
    weight_RK = torch.gather(chance_RE, 1, ids_RK)
    if normalise:
        weight_RK = weight_RK / (weight_RK.sum(-1, keepdim=True) + 1e-20)
    return ids_RK, weight_RK * scale


def shape(
    logit_RE: Tensor, bias_E: Tensor, top: int, scale: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    rows = logit_RE.shape[0]
    return logit_RE.new_empty(rows, top, dtype=torch.int64), logit_RE.new_empty(rows, top)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for experts, top in ((16, 4), (288, 8), (10, 3)):
        logit = normal(generator, 328, experts)
        logit[::3, 1] = logit[::3, 0]  # real ties
        args = {
            "logit_RE": logit,
            "bias_E": normal(generator, experts, scale=0.1),
            "top": top,
            "scale": 2.5,
            "normalise": True,
        }
        found.append(Case(name=f"{top}of{experts}", args=args, rows=("logit_RE",)))
    return found


OP = OpSpec(
    name="route",
    schema="(Tensor logit, Tensor bias, int top, float scale, bool normalise) -> (Tensor, Tensor)",
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("logit_RE", "bias_E"),
)
