"""Which experts a row runs, scored by the square root of the softplus (spec dsv41 2.8)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal


def chances(logit: Tensor) -> Tensor:
    """sqrt(softplus(logit)), in a form that neither overflows nor loses small values."""
    return torch.sqrt(logit.clamp(min=0) + torch.log1p(torch.exp(-logit.abs())))


def reference(logit_RE: Tensor, bias_E: Tensor, top: int, scale: float) -> tuple[Tensor, Tensor]:
    """Expert ids [R, top], ascending, and their weights [R, top].

    The best of chance + bias are chosen, ties to the lowest id; the weights are the chances alone,
    made to sum to `scale`, summed in ascending id.
    """
    chance_RE = chances(logit_RE)
    order_RE = torch.sort(chance_RE + bias_E, dim=-1, descending=True, stable=True).indices
    ids_RK = order_RE[:, :top].sort(-1).values
    weight_RK = torch.gather(chance_RE, 1, ids_RK)
    return ids_RK, weight_RK / (weight_RK.sum(-1, keepdim=True) + 1e-20) * scale


def shape(logit_RE: Tensor, bias_E: Tensor, top: int, scale: float) -> tuple[Tensor, Tensor]:
    rows = logit_RE.shape[0]
    return logit_RE.new_empty(rows, top, dtype=torch.int64), logit_RE.new_empty(rows, top)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for experts, top in ((16, 4), (384, 6), (6, 2)):
        logit = normal(generator, 328, experts, scale=4.0)
        logit[::3, 1] = logit[::3, 0]  # real ties
        args = {
            "logit_RE": logit,
            "bias_E": normal(generator, experts, scale=0.1),
            "top": top,
            "scale": 1.5,
        }
        found.append(Case(name=f"{top}of{experts}", args=args, rows=("logit_RE",)))
    return found


OP = OpSpec(
    name="route_softplus",
    schema="(Tensor logit, Tensor bias, int top, float scale) -> (Tensor, Tensor)",
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("logit_RE", "bias_E"),
)
