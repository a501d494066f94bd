"""Sums of a row's beginnings, by which a cut finds its last token."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, uniform


def reference(x_CH: Tensor) -> Tensor:
    """[C, H] sums of x up to each place, in float64, in an order that the place alone fixes: the
    same bits however much follows. Of 1, 2, 4 and more places here."""
    step = 1
    while step < x_CH.shape[1]:
        x_CH = torch.cat([x_CH[:, :step], x_CH[:, step:] + x_CH[:, :-step]], 1)
        step *= 2
    return x_CH


def shape(x_CH: Tensor) -> Tensor:
    return x_CH.new_empty(x_CH.shape)


def cases(generator: torch.Generator) -> list[Case]:
    return [
        Case(name=str(size), args={"x_CH": uniform(generator, 328, size).double()}, rows=("x_CH",))
        for size in (1, 163, 256, 1024, 3000)
    ]


OP = OpSpec(
    name="running_sums",
    schema="(Tensor x) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("x_CH",),
)
