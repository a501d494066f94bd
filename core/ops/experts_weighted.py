"""Routed experts whose weight enters before the second product (spec dsv41 2.8).

Sums run as in `experts`: ascending ids inside fixed ranges, and the ranges in a tree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, uniform
from tensorfold.core.ops.experts import clamped_swiglu, ranges
from tensorfold.core.ops.linear_parts import tree
from tensorfold.core.ops.rounding import fp8_round


def weighted(gate_up: Tensor, weight: Tensor, limit: float, rounded: bool) -> Tensor:
    """The second product's input; with `rounded`, through FP8."""
    hidden = clamped_swiglu(gate_up, limit) * weight
    return fp8_round(hidden) if rounded else hidden


def reference(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    rounded: bool,
    first: int,
    parts: int,
) -> Tensor:
    """sum over k of the expert ids[k], its hidden values times weight[k]; ids ascend; [R, D].

    gate_up is [E, D, 2 * I], gate columns first; down is [E, I, D]; `first` and `parts` are those
    of `experts`. `rounded` sends the hidden values through FP8 before the second product.
    """
    experts = gate_up_EDI.shape[0]
    sums_PRD = x_RD.new_zeros(parts, *x_RD.shape)
    for expert in range(experts):
        row, pick = (ids_RK == first + expert).nonzero(as_tuple=True)
        gate_up = x_RD[row] @ gate_up_EDI[expert]
        hidden = weighted(gate_up, weight_RK[row, pick, None], limit, rounded)
        sums_PRD[expert * parts // experts, row] += hidden @ down_EID[expert]
    return tree(sums_PRD)


def shape(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    rounded: bool,
    first: int,
    parts: int,
) -> Tensor:
    return torch.empty_like(x_RD)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    # A value at a rounding boundary may fall on either side: the rounded case has a wide budget.
    for experts, top, size, inner, rounded, first, held in (
        (16, 4, 256, 48, False, 0, 16),
        (6, 2, 128, 64, False, 0, 6),
        (6, 2, 128, 64, True, 0, 6),
        (16, 4, 256, 48, False, 10, 6),
    ):
        choice = torch.rand(328, experts, generator=generator).argsort(-1)[:, :top].sort(-1).values
        args = {
            "x_RD": normal(generator, 328, size),
            "ids_RK": choice,
            "weight_RK": uniform(generator, 328, top),
            "gate_up_EDI": normal(generator, held, size, 2 * inner, scale=size**-0.5),
            "down_EID": normal(generator, held, inner, size, scale=inner**-0.5),
            "limit": 1.0,
            "rounded": rounded,
            "first": first,
            "parts": ranges(experts) * held // experts,
        }
        run = "" if held == experts else f"-{first}to{first + held}"
        name = f"{top}of{experts}x{size}x{inner}{run}{'-fp8' if rounded else ''}"
        rows = ("x_RD", "ids_RK", "weight_RK")
        budget = 2e-2 if rounded else 2e-6
        found.append(Case(name=name, args=args, rows=rows, budget=budget))
    return found


OP = OpSpec(
    name="experts_weighted",
    schema=(
        "(Tensor x, Tensor ids, Tensor weight, Tensor gate_up, Tensor down, float limit,"
        " bool rounded, int first, int parts) -> Tensor"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("weight_RK",),
)
