"""Pooled index keys: a softmax over a pool's members, channel by channel (spec glm53 2.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal


def reference(keys_PMD: Tensor, gates_PMD: Tensor, ape_MD: Tensor) -> Tensor:
    """sum over m of softmax over m (gates + ape) * keys; returns [P, D]."""
    weights_PMD = torch.softmax(gates_PMD + ape_MD, 1)
    return (weights_PMD * keys_PMD).sum(1)


def shape(keys_PMD: Tensor, gates_PMD: Tensor, ape_MD: Tensor) -> Tensor:
    return keys_PMD.new_empty(keys_PMD.shape[0], keys_PMD.shape[2])


def cases(generator: torch.Generator) -> list[Case]:
    return [
        Case(
            name=f"4x{size}",
            args={
                "keys_PMD": normal(generator, 328, 4, size),
                "gates_PMD": normal(generator, 328, 4, size),
                "ape_MD": normal(generator, 4, size),
            },
            rows=("keys_PMD", "gates_PMD"),
        )
        for size in (32, 128, 20)
    ]


OP = OpSpec(
    name="pool_keys",
    schema="(Tensor keys, Tensor gates, Tensor ape) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
)
