"""Routed experts: clamped SwiGLU of the chosen experts, summed in an order no rank count changes.

A row's picks are added in ascending id inside each of eight fixed ranges of expert ids, and the
ranges in `linear_parts`' tree; one range where eight does not divide the experts. A rank that holds
a run of the ranges gives their sum alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, uniform
from tensorfold.core.ops.linear_parts import PARTS, tree


def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit); gate and up are halves of the last axis.

    Source: spec glm53 2.6. The SiLU is written out: the library's depends on an element's place.
    """
    gate, up = gate_up.chunk(2, -1)
    gate = gate.clamp(max=limit)
    return gate / (1 + torch.exp(-gate)) * up.clamp(-limit, limit)


def ranges(experts: int) -> int:
    """How many ranges of expert ids are summed apart."""
    return PARTS if experts % PARTS == 0 else 1


def reference(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    first: int,
    parts: int,
) -> Tensor:
    """sum over k of weight[k] * expert(ids[k])(x); ids ascend; returns [R, D].

    gate_up is [E, D, 2 * I], gate columns first; down is [E, I, D]. They are the experts `first` to
    `first + E`, in `parts` ranges of equally many; a pick of any other expert adds nothing.
    """
    experts = gate_up_EDI.shape[0]
    sums_PRD = x_RD.new_zeros(parts, *x_RD.shape)
    for expert in range(experts):
        row, pick = (ids_RK == first + expert).nonzero(as_tuple=True)
        hidden = clamped_swiglu(x_RD[row] @ gate_up_EDI[expert], limit) @ down_EID[expert]
        sums_PRD[expert * parts // experts, row] += weight_RK[row, pick, None] * hidden
    return tree(sums_PRD)


def shape(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    first: int,
    parts: int,
) -> Tensor:
    return torch.empty_like(x_RD)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for experts, top, size, inner, first, held in (
        (16, 4, 256, 48, 0, 16),
        (16, 4, 64, 32, 0, 16),
        (12, 3, 64, 20, 0, 12),
        (16, 4, 256, 48, 10, 6),
        (16, 4, 64, 32, 4, 8),
    ):
        choice = torch.rand(328, experts, generator=generator).argsort(-1)[:, :top].sort(-1).values
        args = {
            "x_RD": normal(generator, 328, size),
            "ids_RK": choice,
            "weight_RK": uniform(generator, 328, top),
            "gate_up_EDI": normal(generator, held, size, 2 * inner, scale=size**-0.5),
            "down_EID": normal(generator, held, inner, size, scale=inner**-0.5),
            "limit": 1.0,
            "first": first,
            "parts": ranges(experts) * held // experts,
        }
        rows = ("x_RD", "ids_RK", "weight_RK")
        run = "" if held == experts else f"-{first}to{first + held}"
        found.append(Case(name=f"{top}of{experts}x{size}x{inner}{run}", args=args, rows=rows))
    return found


OP = OpSpec(
    name="experts",
    schema=(
        "(Tensor x, Tensor ids, Tensor weight, Tensor gate_up, Tensor down, float limit,"
        " int first, int parts) -> Tensor"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("weight_RK",),
)
