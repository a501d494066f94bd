"""A looked-up value enters the streams, each by its own gate (spec dsv41 2.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, uniform
from tensorfold.core.ops.hc_split import sigmoid

LEAST = 1e-6


def gate_of(dot: Tensor) -> Tensor:
    """sigmoid of the dot's square root with its sign."""
    return sigmoid(torch.copysign(torch.sqrt(dot.abs().clamp(min=LEAST)), dot))


def reference(
    x_RND: Tensor, key_RND: Tensor, value_RD: Tensor, weight_ND: Tensor, open_R: Tensor, eps: float
) -> Tensor:
    """X[i] + open * g[i] * value, g[i] from the dot of the normed X[i] and key[i] under weight[i].

    open_R is 1, or 0 for rows that take nothing.
    """
    x_norm = torch.sqrt(x_RND.square().mean(-1) + eps)
    key_norm = torch.sqrt(key_RND.square().mean(-1) + eps)
    dot_RN = (x_RND * weight_ND * key_RND).sum(-1) / (x_norm * key_norm)
    gate_RN = gate_of(dot_RN * x_RND.shape[-1] ** -0.5) * open_R[:, None]
    return x_RND + gate_RN[..., None] * value_RD[:, None]


def shape(
    x_RND: Tensor, key_RND: Tensor, value_RD: Tensor, weight_ND: Tensor, open_R: Tensor, eps: float
) -> Tensor:
    return torch.empty_like(x_RND)


def cases(generator: torch.Generator) -> list[Case]:
    return [
        Case(
            name=f"{n}x{d}",
            args={
                "x_RND": normal(generator, 328, n, d),
                "key_RND": normal(generator, 328, n, d),
                "value_RD": normal(generator, 328, d),
                "weight_ND": 1 + normal(generator, n, d, scale=0.3),
                "open_R": (uniform(generator, 328) > 0.1).float(),
                "eps": 1e-20,
            },
            rows=("x_RND", "key_RND", "value_RD", "open_R"),
            # The square root is steep where a dot is small.
            budget=1e-5,
        )
        for n, d in ((4, 256), (4, 128), (2, 48))
    ]


OP = OpSpec(
    name="engram_gate",
    schema=(
        "(Tensor x, Tensor key, Tensor value, Tensor weight, Tensor open, float eps) -> Tensor"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("weight_ND",),
)
