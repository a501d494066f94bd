"""Attention of heads over listed latents of one cache: the absorbed form (spec glm53 2.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, whole
from tensorfold.core.ops.pick_tokens import slots


def reference(
    q_RHC: Tensor,
    latents_SC: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    list_RK: Tensor,
    page: int,
    scale: float,
) -> Tensor:
    """softmax(scale * q . latent) over a row's listed tokens, then the latents' mean; [R, H, C].

    Unused entries of a list are -1, and every list has a used one.
    """
    latents_RKC = latents_SC[slots(list_RK.clamp(min=0), lane_R, table_LP, page)]
    score_RHK = torch.einsum("rhc,rkc->rhk", q_RHC, latents_RKC) * scale
    score_RHK = score_RHK.masked_fill((list_RK < 0)[:, None], float("-inf"))
    return torch.einsum("rhk,rkc->rhc", torch.softmax(score_RHK, -1), latents_RKC)


def shape(
    q_RHC: Tensor,
    latents_SC: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    list_RK: Tensor,
    page: int,
    scale: float,
) -> Tensor:
    return torch.empty_like(q_RHC)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for width, rank, heads in ((272, 64, 4), (32, 32, 4), (1024, 64, 4)):
        lanes, page = 3, 64
        pages = 20
        table = torch.randperm(lanes * pages, generator=generator).view(lanes, pages)
        used = whole(generator, 1, width + 1, 136, 1)
        tokens = torch.arange(width).expand(136, -1)
        args = {
            "q_RHC": normal(generator, 136, heads, rank),
            "latents_SC": normal(generator, lanes * pages * page, rank),
            "table_LP": table,
            "lane_R": whole(generator, 0, lanes, 136),
            "list_RK": torch.where(tokens < used, tokens, -1),
            "page": page,
            "scale": rank**-0.5,
        }
        rows = ("q_RHC", "lane_R", "list_RK")
        found.append(Case(name=f"{width}x{rank}", args=args, rows=rows))
    return found


OP = OpSpec(
    name="latent_attention",
    schema=(
        "(Tensor q, Tensor latents, Tensor table, Tensor lane, Tensor list, int page, float scale)"
        " -> Tensor"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
)
