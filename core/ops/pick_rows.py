"""The compressed rows that an index picks for a row, and the blocks that later ones may pick from.

Source: spec dsv41 2.7. Ties go to the lowest row or block; lists ascend.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal, whole
from tensorfold.core.ops.pick_tokens import slots


def best(score_N: Tensor, top: int) -> list[int]:
    """Places of the `top` highest finite or infinite scores, ascending; -inf is no score."""
    order = torch.sort(score_N, descending=True, stable=True).indices[:top]
    return [place for place in order.sort().values.tolist() if score_N[place] > float("-inf")]


def reference(
    q_RHD: Tensor,
    weight_RH: Tensor,
    keys_SD: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    visible_R: Tensor,
    blocks_RB: Tensor,
    top: int,
    keep: int,
    size: int,
    page: int,
    width: int,
) -> tuple[Tensor, Tensor]:
    """Lists [R, top] of row numbers, and [R, keep] of blocks of `size` rows; -1 where unused.

    score(j) = sum over h of weight[h] * relu(q[h] . keys[j]) for the rows j below `visible`. With
    blocks_RB of any width, only rows inside those blocks are picked. A block's score is its best
    row's, and the block of the newest row is always kept. `page` is a page's rows, `width` bounds
    `visible`.
    """
    rows = q_RHD.shape[0]
    list_RK = lane_R.new_full((rows, top), -1)
    kept_RB = lane_R.new_full((rows, keep), -1)
    for row, (lane, visible) in enumerate(zip(lane_R.tolist(), visible_R.tolist(), strict=True)):
        place_1J = torch.arange(visible, device=lane_R.device)[None]
        keys_JD = keys_SD[slots(place_1J, lane_R.new_tensor([lane]), table_LP, page)[0]]
        score_J = weight_RH[row] @ torch.relu(q_RHD[row] @ keys_JD.T)
        if keep and visible:
            blocks = -(-visible // size)
            padded = score_J.new_full((blocks * size,), float("-inf"))
            padded[:visible] = score_J
            block_B = padded.view(blocks, size).amax(-1)
            block_B[(visible - 1) // size] = float("inf")
            kept = best(block_B, keep)
            kept_RB[row, : len(kept)] = lane_R.new_tensor(kept)
        if blocks_RB.shape[1]:
            inside = (place_1J[0, :, None] // size == blocks_RB[row]).any(-1)
            score_J = score_J.masked_fill(~inside, float("-inf"))
        picked = best(score_J, top)
        list_RK[row, : len(picked)] = lane_R.new_tensor(picked)
    return list_RK, kept_RB


def shape(
    q_RHD: Tensor,
    weight_RH: Tensor,
    keys_SD: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    visible_R: Tensor,
    blocks_RB: Tensor,
    top: int,
    keep: int,
    size: int,
    page: int,
    width: int,
) -> tuple[Tensor, Tensor]:
    rows = q_RHD.shape[0]
    return lane_R.new_empty(rows, top), lane_R.new_empty(rows, keep)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for top, keep, given, size, longest in (
        (4, 3, 0, 2, 100),
        (4, 0, 3, 2, 100),
        (64, 0, 0, 8, 1000),
        (16, 6, 0, 8, 200),
    ):
        lanes, page, heads, width, rows = 3, 32, 8, 32, 136
        pages = -(-longest // page)
        table = torch.randperm(lanes * pages, generator=generator).view(lanes, pages)
        visible = whole(generator, 0, longest + 1, rows)
        blocks = torch.rand(rows, 12, generator=generator).argsort(-1)[:, :given].sort(-1).values
        args = {
            "q_RHD": normal(generator, rows, heads, width),
            "weight_RH": normal(generator, rows, heads),
            "keys_SD": normal(generator, lanes * pages * page, width),
            "table_LP": table,
            "lane_R": whole(generator, 0, lanes, rows),
            "visible_R": visible,
            "blocks_RB": blocks,
            "top": top,
            "keep": keep,
            "size": size,
            "page": page,
            "width": pages * page,
        }
        names = ("q_RHD", "weight_RH", "lane_R", "visible_R", "blocks_RB")
        name = f"{top}of{longest}keep{keep}in{given}"
        found.append(Case(name=name, args=args, rows=names, budget=0.0))
    return found


OP = OpSpec(
    name="pick_rows",
    schema=(
        "(Tensor q, Tensor weight, Tensor keys, Tensor table, Tensor lane, Tensor visible,"
        " Tensor blocks, int top, int keep, int size, int page, SymInt width) -> (Tensor, Tensor)"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
)
