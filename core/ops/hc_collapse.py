"""Hyper-connections: a weighted sum of the streams (spec dsv41 2.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, uniform


def reference(x_RND: Tensor, pre_RN: Tensor) -> Tensor:
    """sum over i of pre[i] * X[i]; [R, D]."""
    return torch.einsum("rn,rnd->rd", pre_RN, x_RND)


def shape(x_RND: Tensor, pre_RN: Tensor) -> Tensor:
    return x_RND.new_empty(x_RND.shape[0], x_RND.shape[2])


def cases(generator: torch.Generator) -> list[Case]:
    return [
        Case(
            name=f"{n}x{d}",
            args={"x_RND": normal(generator, 328, n, d), "pre_RN": uniform(generator, 328, n)},
            rows=("x_RND", "pre_RN"),
        )
        for n, d in ((4, 256), (4, 64), (2, 48))
    ]


OP = OpSpec(
    name="hc_collapse",
    schema="(Tensor x, Tensor pre) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("pre_RN",),
)
