"""The tokens a row attends to: the best pools of an index, and the tail of the open pool.

Source: spec glm53 2.5. A pool is a candidate once its last token is visible; ties go to the lowest
pool. Lists ascend, so that a row that keeps everything has one list whatever way it was made.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, whole


def list_width(top: int, pool: int, width: int) -> int:
    """Entries of a list: what the index may keep, or `width` where that is less."""
    return min(-(-(top * pool + pool - 1) // 16) * 16, width)


def slots(token: Tensor, lane_R: Tensor, table_LP: Tensor, page: int) -> Tensor:
    """Buffer rows of tokens [R, N] of the rows' streams, for buffers with one row a token."""
    pages = torch.gather(table_LP[lane_R], 1, token // page)
    return pages * page + token % page


def picks_of(list_RK: Tensor, position_R: Tensor, top: int, pool: int) -> Tensor:
    """The pools [R, top] that lists keep, ascending, -1 where unused."""
    complete_R1 = (position_R[:, None] + 1) // pool * pool
    first_RK = (list_RK >= 0) & (list_RK % pool == 0) & (list_RK < complete_R1)
    # Lists that a rehearsal made up may hold more: nothing may be written past a row.
    place_RK = torch.where(first_RK, first_RK.cumsum(1) - 1, top).clamp(max=top)
    picks_RP = list_RK.new_full((list_RK.shape[0], top + 1), -1)
    return picks_RP.scatter_(1, place_RK, list_RK // pool)[:, :top]


def list_of(picks_RP: Tensor, position_R: Tensor, pool: int, entries: int) -> Tensor:
    """The token lists [R, entries] that rows with these picks have: what `picks_of` is of."""
    seen_R1 = position_R[:, None] + 1
    complete_R1 = seen_R1 // pool * pool
    kept_R1 = (picks_RP >= 0).sum(1, keepdim=True) * pool
    place_K = torch.arange(entries, device=position_R.device)
    pick_K = (place_K // pool).clamp(max=picks_RP.shape[1] - 1)
    token_RK = picks_RP[:, pick_K] * pool + place_K % pool
    tail_RK = complete_R1 + place_K - kept_R1
    token_RK = torch.where(place_K < kept_R1, token_RK, tail_RK)
    return torch.where((place_K < kept_R1) | (tail_RK < seen_R1), token_RK, -1)


def reference(
    q_RHD: Tensor,
    weight_RH: Tensor,
    pools_SD: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    position_R: Tensor,
    top: int,
    pool: int,
    page: int,
    width: int,
) -> Tensor:
    """Token lists [R, list_width], ascending, -1 where unused.

    A row at position t sees tokens 0..t and pools below (t + 1) // pool. score(p) = sum over h of
    weight[h] * relu(q[h] . pools[p]); the `top` best candidates are kept. `width` bounds t + 1.
    """
    list_RK = torch.full(
        (q_RHD.shape[0], list_width(top, pool, width)), -1, dtype=torch.int64, device=q_RHD.device
    )
    for row, (lane, position) in enumerate(zip(lane_R.tolist(), position_R.tolist(), strict=True)):
        seen = position + 1
        candidates = torch.arange(seen // pool, device=q_RHD.device)
        token = (candidates * pool)[None]
        keys = pools_SD[slots(token, lane_R.new_tensor([lane]), table_LP, page)[0] // pool]
        score = weight_RH[row] @ torch.relu(q_RHD[row] @ keys.T)
        kept = torch.sort(score, descending=True, stable=True).indices[:top].sort().values
        tokens = (kept[:, None] * pool + torch.arange(pool, device=kept.device)).flatten().tolist()
        tokens += range(seen // pool * pool, seen)
        list_RK[row, : len(tokens)] = list_RK.new_tensor(tokens)
    return list_RK


def shape(
    q_RHD: Tensor,
    weight_RH: Tensor,
    pools_SD: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    position_R: Tensor,
    top: int,
    pool: int,
    page: int,
    width: int,
) -> Tensor:
    return position_R.new_empty(q_RHD.shape[0], list_width(top, pool, width))


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for top, longest in ((4, 40), (64, 1000), (64, 200)):
        lanes, page, pool, heads, size = 3, 64, 4, 8, 32
        pages = -(-longest // page)
        table = torch.randperm(lanes * pages, generator=generator).view(lanes, pages)
        args = {
            "q_RHD": normal(generator, 136, heads, size),
            "weight_RH": normal(generator, 136, heads),
            "pools_SD": normal(generator, lanes * pages * page // pool, size),
            "table_LP": table,
            "lane_R": whole(generator, 0, lanes, 136),
            "position_R": whole(generator, 0, longest, 136),
            "top": top,
            "pool": pool,
            "page": page,
            "width": pages * page,
        }
        rows = ("q_RHD", "weight_RH", "lane_R", "position_R")
        # A list is right or wrong: near-ties are told apart in the check by the scores' distance.
        found.append(Case(name=f"{top}of{longest}", args=args, rows=rows, budget=0.0))
    return found


OP = OpSpec(
    name="pick_tokens",
    schema=(
        "(Tensor q, Tensor weight, Tensor pools, Tensor table, Tensor lane, Tensor position,"
        " int top, int pool, int page, SymInt width) -> Tensor"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
)
