"""Attention of heads over one latent for all of them: a window of recent rows, listed rows of a
longer memory, and a sink that takes weight and gives nothing (spec dsv41 2.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, whole


def reference(
    q_RHC: Tensor,
    ring_SC: Tensor,
    new_TC: Tensor,
    window_RW: Tensor,
    memory_SC: Tensor,
    list_RK: Tensor,
    sink_H: Tensor,
    scale: float,
) -> Tensor:
    """Keys are values: softmax over scale * q . key and the sink's logit, then the keys' sum.

    window_RW names rows of [ring, new] and list_RK rows of memory, -1 where unused; every window
    has a used entry. [R, H, C].
    """
    recent_RWC = torch.cat([ring_SC, new_TC])[window_RW.clamp(min=0)]
    key_RNC = torch.cat([recent_RWC, memory_SC[list_RK.clamp(min=0)]], 1)
    unused_RN = torch.cat([window_RW, list_RK], 1) < 0
    # An unused entry names a row of anybody: nothing of it may come in, NaN included.
    key_RNC = key_RNC.masked_fill(unused_RN[..., None], 0)
    score_RHN = torch.einsum("rhc,rnc->rhn", q_RHC, key_RNC) * scale
    score_RHN = score_RHN.masked_fill(unused_RN[:, None], float("-inf"))
    sink_RH1 = sink_H[None, :, None].expand(q_RHC.shape[0], -1, -1)
    weight_RHN = torch.softmax(torch.cat([score_RHN, sink_RH1], -1), -1)[..., :-1]
    return torch.einsum("rhn,rnc->rhc", weight_RHN, key_RNC)


def shape(
    q_RHC: Tensor,
    ring_SC: Tensor,
    new_TC: Tensor,
    window_RW: Tensor,
    memory_SC: Tensor,
    list_RK: Tensor,
    sink_H: Tensor,
    scale: float,
) -> Tensor:
    return torch.empty_like(q_RHC)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for heads, size, window, listed in ((4, 64, 8, 4), (8, 128, 128, 64), (4, 32, 16, 0)):
        rows, ring, fresh, memory = 136, 60, 150, 500
        wide = whole(generator, 0, ring + fresh, rows, window)
        seen = whole(generator, 1, window + 1, rows, 1)
        lists = whole(generator, 0, memory, rows, listed)
        kept = whole(generator, 0, listed + 1, rows, 1)
        args = {
            "q_RHC": normal(generator, rows, heads, size),
            "ring_SC": normal(generator, ring, size),
            "new_TC": normal(generator, fresh, size),
            "window_RW": torch.where(torch.arange(window).flip(0) < seen, wide, -1),
            "memory_SC": normal(generator, memory, size),
            "list_RK": torch.where(torch.arange(listed) < kept, lists, -1),
            "sink_H": normal(generator, heads),
            "scale": size**-0.5,
        }
        rows_of = ("q_RHC", "window_RW", "list_RK")
        found.append(Case(name=f"{heads}x{size}over{window}+{listed}", args=args, rows=rows_of))
    return found


OP = OpSpec(
    name="sink_attention",
    schema=(
        "(Tensor q, Tensor ring, Tensor new, Tensor window, Tensor memory, Tensor list,"
        " Tensor sink, float scale) -> Tensor"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("sink_H",),
)
