"""Hyper-connections, after a sublayer: its output returns to the streams (spec glm53 2.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, uniform


def reference(y_RD: Tensor, x_RND: Tensor, post_RN: Tensor, comb_RNN: Tensor) -> Tensor:
    """X'[j] = post[j] * y + sum over i of comb[i, j] * X[i]; returns streams [R, N, D]."""
    return post_RN[:, :, None] * y_RD[:, None] + torch.einsum("rij,rid->rjd", comb_RNN, x_RND)


def shape(y_RD: Tensor, x_RND: Tensor, post_RN: Tensor, comb_RNN: Tensor) -> Tensor:
    return torch.empty_like(x_RND)


def cases(generator: torch.Generator) -> list[Case]:
    return [
        Case(
            name=f"{n}x{d}",
            args={
                "y_RD": normal(generator, 328, d),
                "x_RND": normal(generator, 328, n, d),
                "post_RN": uniform(generator, 328, n),
                "comb_RNN": uniform(generator, 328, n, n),
            },
            rows=("y_RD", "x_RND", "post_RN", "comb_RNN"),
        )
        for n, d in ((4, 256), (4, 64), (2, 48))
    ]


OP = OpSpec(
    name="hc_join",
    schema="(Tensor y, Tensor x, Tensor post, Tensor comb) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("post_RN", "comb_RNN"),
)
