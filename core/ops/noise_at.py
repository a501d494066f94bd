"""The noise of some tokens, exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, whole
from tensorfold.core.ops.keyed_noise import gumbel, token_bits


def reference(key_N: Tensor, id_NK: Tensor) -> Tensor:
    """Gumbel noise of tokens under their row's key, float64 [N, K]: `keyed.gumbel`, bit for bit."""
    return gumbel(token_bits(key_N, id_NK))


def shape(key_N: Tensor, id_NK: Tensor) -> Tensor:
    return key_N.new_empty(id_NK.shape, dtype=torch.float64)


def cases(generator: torch.Generator) -> list[Case]:
    return [
        Case(
            name=str(count),
            args={
                "key_N": whole(generator, -(2**63), 2**63 - 1, 328),
                "id_NK": whole(generator, 0, 200_000, 328, count),
            },
            rows=("key_N", "id_NK"),
            budget=0.0,
        )
        for count in (1, 16, 300)
    ]


OP = OpSpec(
    name="noise_at",
    schema="(Tensor key, Tensor ids) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
)
