"""`experts`: both products of the picked experts, then a row's picks summed.

Few rows and many rows give the same bits: each product is one accumulator over its inner dimension,
and `add_picks` sums either's results.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tensorfold.backends.cuda_triton.kernels.add_picks import sum_picks
from tensorfold.backends.cuda_triton.kernels.experts_few import down_few, gate_up_few
from tensorfold.backends.cuda_triton.kernels.experts_many import (
    RUN,
    count_picks,
    grouped,
    place_picks,
    scan_runs,
)
from tensorfold.backends.cuda_triton.kernels.experts_stay import (
    PIECE,
    down_stay,
    lay_out,
    map_tiles,
    up_stay,
)
from tensorfold.backends.cuda_triton.kernels.many import aligned, num_programs
from tensorfold.backends.cuda_triton.kernels.tiles import Tile

# Picks up to which the few-row form is the faster one. Tiles below are the fastest of about eight
# each on an H200.
FEW_PICKS = 512
# Formats whose weights are read through descriptors.
DESCRIBED = (torch.bfloat16,)


def tiles_few() -> tuple[Tile, Tile]:
    """Of both products."""
    return Tile(16, 64, 64, 4, 4), Tile(16, 64, 128, 4, 4)


def tiles_many(dtype: torch.dtype) -> tuple[Tile, Tile]:
    """Of both products; float32 has no tensor cores, and its products are written out."""
    if dtype == torch.float32:
        return Tile(64, 32, 32, 4, 2), Tile(64, 64, 32, 4, 2)
    return Tile(128, 128, 64, 8, 3), Tile(128, 256, 64, 8, 3)


def run(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    first: int,
    parts: int,
    weighted: bool,
    rounded: bool,
    tiles: tuple[Tile, Tile] | None = None,
    few: bool | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`weighted`: weights enter before the second product. `tiles` and `few` only change who does
    what. The sums are rounded to `dtype`, or to the rows' own."""
    x_RD, ids_RK, weight_RK = x_RD.contiguous(), ids_RK.contiguous(), weight_RK.contiguous()
    result_RD = torch.empty(x_RD.shape, dtype=dtype or x_RD.dtype, device=x_RD.device)
    if not x_RD.shape[0]:
        return result_RD
    form = by_pick if (ids_RK.numel() <= FEW_PICKS if few is None else few) else by_group
    out_PD = form(
        x_RD,
        ids_RK,
        weight_RK,
        gate_up_EDI.contiguous(),
        down_EID.contiguous(),
        limit,
        first,
        weighted,
        rounded,
        tiles,
    )
    sum_picks(out_PD, ids_RK, result_RD, first, gate_up_EDI.shape[0], parts)
    return result_RD


def by_pick(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    first: int,
    weighted: bool,
    rounded: bool,
    tiles: tuple[Tile, Tile] | None,
) -> Tensor:
    picks, top = ids_RK.numel(), ids_RK.shape[1]
    num_experts, inner, size = down_EID.shape
    one, two = tiles or tiles_few()
    padded = max(64, triton.next_power_of_2(picks))
    hidden_PI = x_RD.new_empty(picks, inner)
    gate_up_few[(triton.cdiv(inner, one.columns), picks)](
        x_RD,
        ids_RK,
        weight_RK,
        gate_up_EDI,
        hidden_PI,
        picks,
        size,
        inner,
        first,
        num_experts,
        limit,
        K=top,
        PICKS=padded,
        ROWS=one.rows,
        COLUMNS=one.columns,
        STEP=one.step,
        WHOLE=inner % one.columns == 0 and size % one.step == 0,
        WEIGHTED=weighted,
        ROUNDED=rounded,
        num_warps=one.warps,
        num_stages=one.stages,
    )
    out_PD = x_RD.new_empty(picks, size, dtype=torch.float32)
    down_few[(triton.cdiv(size, two.columns), picks)](
        hidden_PI,
        ids_RK,
        weight_RK,
        down_EID,
        out_PD,
        picks,
        size,
        inner,
        first,
        num_experts,
        PICKS=padded,
        ROWS=two.rows,
        COLUMNS=two.columns,
        STEP=two.step,
        WHOLE=size % two.columns == 0 and inner % two.step == 0,
        WEIGHTED=weighted,
        num_warps=two.warps,
        num_stages=two.stages,
    )
    return out_PD


def by_group(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    first: int,
    weighted: bool,
    rounded: bool,
    tiles: tuple[Tile, Tile] | None,
) -> Tensor:
    picks, top = ids_RK.numel(), ids_RK.shape[1]
    num_experts, inner, size = down_EID.shape
    experts = triton.next_power_of_2(num_experts + 1)
    runs = triton.cdiv(picks, RUN)
    counts = ids_RK.new_empty(runs, experts, dtype=torch.int32)
    totals = ids_RK.new_empty(experts, dtype=torch.int32)
    starts = ids_RK.new_empty(experts, dtype=torch.int32)
    sorted_picks = ids_RK.new_empty(picks, dtype=torch.int32)
    places = torch.empty_like(sorted_picks)
    count_picks[(runs,)](
        ids_RK, counts, picks, first, num_experts, RUN=RUN, EXPERTS=experts, num_warps=4
    )
    some = min(experts, 32)
    scan_runs[(experts // some,)](
        counts, totals, runs, RUNS=64, EXPERTS=experts, E=some, num_warps=4
    )
    place_picks[(runs,)](
        ids_RK,
        counts,
        totals,
        starts,
        sorted_picks,
        places,
        picks,
        first,
        num_experts,
        RUN=RUN,
        EXPERTS=experts,
        num_warps=4,
    )
    one, two = tiles or tiles_many(x_RD.dtype)
    weights_KN = gate_up_EDI.view(-1, 2 * inner), down_EID.view(-1, size)
    whole = not (inner % one.columns or size % one.step or size % two.columns or inner % two.step)
    described = whole and x_RD.dtype in DESCRIBED and all(map(aligned, weights_KN))
    if described:
        laid_PD = x_RD.new_empty(picks, size)
        columns = min(1024, triton.next_power_of_2(size))
        grid = (x_RD.shape[0], triton.cdiv(size, columns))
        lay_out[grid](x_RD, places, laid_PD, size, K=top, COLUMNS=columns, num_warps=4)
        return by_descriptor(
            laid_PD, weight_RK, weights_KN, starts, sorted_picks, limit, weighted, rounded, one, two
        )
    return by_pointer(
        x_RD, weight_RK, weights_KN, starts, sorted_picks, top, limit, weighted, rounded, one, two
    )


def by_descriptor(
    laid_PD: Tensor,
    weight_RK: Tensor,
    weights_KN: tuple[Tensor, Tensor],
    starts: Tensor,
    sorted_picks: Tensor,
    limit: float,
    weighted: bool,
    rounded: bool,
    one: Tile,
    two: Tile,
) -> Tensor:
    """laid_PD: rows in sorted order."""
    picks, size = laid_PD.shape
    inner = weights_KN[0].shape[1] // 2
    num_experts = weights_KN[0].shape[0] // size
    hidden_PI = laid_PD.new_empty(picks, inner)
    out_PD = laid_PD.new_empty(picks, size, dtype=torch.float32)
    programs = num_programs(laid_PD.device)

    def mapped(tile: Tile) -> tuple[Tensor, int]:
        most = triton.cdiv(picks, tile.rows) + num_experts
        tiles_T4 = starts.new_empty(most + 1, 4)
        grid = (triton.cdiv(most, 16),)
        map_tiles[grid](
            starts, tiles_T4, num_experts, most, ROWS=tile.rows, EXPERTS=starts.shape[0], T=16
        )
        return tiles_T4, most

    tiles_T4, most = mapped(one)
    up_stay[(programs,)](
        TensorDescriptor.from_tensor(laid_PD, [one.rows, one.step]),
        TensorDescriptor.from_tensor(weights_KN[0], [one.step, one.columns]),
        hidden_PI,
        weight_RK,
        tiles_T4,
        most,
        sorted_picks,
        size,
        inner,
        limit,
        WEIGHTED=weighted,
        ROUNDED=rounded,
        ROWS=one.rows,
        COLUMNS=one.columns,
        STEP=one.step,
        PROGRAMS=programs,
        num_warps=one.warps,
        num_stages=one.stages,
    )
    if one.rows != two.rows:
        tiles_T4, most = mapped(two)
    down_stay[(programs,)](
        TensorDescriptor.from_tensor(hidden_PI, [two.rows, two.step]),
        TensorDescriptor.from_tensor(weights_KN[1], [two.step, two.columns]),
        out_PD,
        weight_RK,
        tiles_T4,
        most,
        sorted_picks,
        inner,
        size,
        WEIGHTED=weighted,
        ROWS=two.rows,
        COLUMNS=two.columns,
        STEP=two.step,
        PIECES=max(1, two.columns // PIECE),
        PROGRAMS=programs,
        num_warps=two.warps,
        num_stages=two.stages,
    )
    return out_PD


def by_pointer(
    x_RD: Tensor,
    weight_RK: Tensor,
    weights_KN: tuple[Tensor, Tensor],
    starts: Tensor,
    sorted_picks: Tensor,
    top: int,
    limit: float,
    weighted: bool,
    rounded: bool,
    one: Tile,
    two: Tile,
) -> Tensor:
    picks, size, inner = sorted_picks.numel(), x_RD.shape[1], weights_KN[0].shape[1] // 2
    hidden_PI = x_RD.new_empty(picks, inner)
    out_PD = x_RD.new_empty(picks, size, dtype=torch.float32)
    programs = num_programs(x_RD.device)
    for tile, a_PK, w_KN, out, up in (
        (one, x_RD, weights_KN[0], hidden_PI, True),
        (two, hidden_PI, weights_KN[1], out_PD, False),
    ):
        grouped[(programs,)](
            a_PK,
            w_KN,
            out,
            weight_RK,
            starts,
            sorted_picks,
            a_PK.shape[1],
            w_KN.shape[1],
            out.shape[1],
            weights_KN[0].shape[0] // size,
            limit,
            K=top,
            UP=up,
            WEIGHTED=weighted,
            ROUNDED=rounded,
            EXPERTS=starts.shape[0],
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            STEP=tile.step,
            PROGRAMS=programs,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out_PD


def experts(
    x_RD: Tensor,
    ids_RK: Tensor,
    weight_RK: Tensor,
    gate_up_EDI: Tensor,
    down_EID: Tensor,
    limit: float,
    first: int,
    parts: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The op, its sums rounded to `dtype` or to the rows' own."""
    args = x_RD, ids_RK, weight_RK, gate_up_EDI, down_EID, limit, first, parts
    return run(*args, False, False, dtype=dtype)
