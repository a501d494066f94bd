"""One number a token by which a vocabulary is sorted: by logit, and equal logits by id."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, whole


def reference(logits_SV: Tensor) -> Tensor:
    """int64 keys [S, V] that rise with the logit in float32 and, among equal ones, with a falling
    id: none are equal.

    The bits of a float32 as an integer order its magnitude; negative ones are turned around. Both
    zeros are one.
    """
    bits_SV = (logits_SV.float() + 0.0).view(torch.int32)
    ordered_SV = bits_SV ^ ((bits_SV >> 31) & 0x7FFFFFFF)
    vocab_size = logits_SV.shape[1]
    back_V = torch.arange(vocab_size - 1, -1, -1, device=logits_SV.device)
    return (ordered_SV.long() << 32) + back_V


def shape(logits_SV: Tensor) -> Tensor:
    return logits_SV.new_empty(logits_SV.shape, dtype=torch.int64)


def cases(generator: torch.Generator) -> list[Case]:
    tied = whole(generator, -2, 3, 328, 163).float()
    tied[:, 3::7] = -0.0
    tied[:, 5::11] = float("-inf")
    return [
        Case(name="random", args={"logits_SV": normal(generator, 328, 1000)}, rows=("logits_SV",)),
        Case(name="ties", args={"logits_SV": tied}, rows=("logits_SV",)),
        Case(name="one", args={"logits_SV": normal(generator, 328, 1)}, rows=("logits_SV",)),
    ]


OP = OpSpec(
    name="rank_keys",
    schema="(Tensor logits) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
)
