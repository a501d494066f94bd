"""`experts`: both products of the picked experts, then a row's picks summed.

Few rows and many rows give the same bits: each product is one accumulator over its inner dimension,
and `add_picks` sums either's results.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tensorfold.backends.cuda_triton.kernels.experts_few import down_few, gate_up_few
from tensorfold.backends.cuda_triton.kernels.experts_many import (
    RUN,
    count_picks,
    grouped,
    place_picks,
    scan_runs,
)
from tensorfold.backends.cuda_triton.kernels.experts_stay import lay_out, map_tiles, stay
from tensorfold.backends.cuda_triton.kernels.many import aligned, num_programs
from tensorfold.backends.cuda_triton.kernels.tiles import Tile

# Picks up to which the few-row form is the faster one. Tiles below are the fastest of about eight
# each on an H200.
FEW_PICKS = 512


@triton.jit
def add_picks(
    out,
    ids,
    result,
    D,
    first,
    E,
    parts,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """result[row] from out[row, pick], [R, K, D] in float32: ids ascending inside each range.

    PARTS is a power of two: empty ranges after the last leave the ops' tree as it is.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < D
    part = tl.arange(0, PARTS)
    sums = tl.zeros((PARTS, COLUMNS), tl.float32)
    for k in tl.static_range(K):
        expert = tl.load(ids + row * K + k) - first
        here = (expert >= 0) & (expert < E)
        value = tl.load(out + (row * K + k) * D + column, mask=inside & here, other=0.0)
        mine = here & (part == expert * parts // E)
        sums += tl.where(mine[:, None], value[None, :], 0.0)
    LEFT: tl.constexpr = PARTS // 2
    if PARTS == 8:
        sums = tl.sum(tl.reshape(sums, (LEFT, 2, COLUMNS)), 1)
    if PARTS >= 4:
        sums = tl.sum(tl.reshape(sums, (2, 2, COLUMNS)), 1)
    total = tl.sum(sums, 0)
    tl.store(result + row * D + column, total.to(result.dtype.element_ty), mask=inside)


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
) -> Tensor:
    """`weighted`: weights enter before the second product. `tiles` and `few` only change who does
    what."""
    x_RD, ids_RK, weight_RK = x_RD.contiguous(), ids_RK.contiguous(), weight_RK.contiguous()
    result_RD = torch.empty(x_RD.shape, dtype=x_RD.dtype, device=x_RD.device)
    rows, size = x_RD.shape
    if not rows:
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
    columns = min(512, triton.next_power_of_2(size))
    add_picks[(rows, triton.cdiv(size, columns))](
        out_PD,
        ids_RK,
        result_RD,
        size,
        first,
        gate_up_EDI.shape[0],
        parts,
        K=ids_RK.shape[1],
        PARTS=triton.next_power_of_2(parts),
        COLUMNS=columns,
        num_warps=4,
    )
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
    described = whole and x_RD.dtype == torch.bfloat16 and all(map(aligned, weights_KN))
    form = by_descriptor if described else by_pointer
    return form(
        x_RD, weight_RK, weights_KN, starts, sorted_picks, top, limit, weighted, rounded, one, two
    )


def by_descriptor(
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
    num_experts = weights_KN[0].shape[0] // size
    sorted_PD, hidden_PI = x_RD.new_empty(picks, size), x_RD.new_empty(picks, inner)
    out_PD = x_RD.new_empty(picks, size, dtype=torch.float32)
    columns = min(2048, triton.next_power_of_2(size))
    lay_out[(picks,)](
        x_RD, sorted_picks, starts, sorted_PD, size, num_experts, K=top, COLUMNS=columns
    )
    programs = num_programs(x_RD.device)
    tiles_T4 = starts
    for tile, a_PK, w_KN, out, up in (
        (one, sorted_PD, weights_KN[0], hidden_PI, True),
        (two, hidden_PI, weights_KN[1], out_PD, False),
    ):
        most = triton.cdiv(picks, tile.rows) + num_experts
        if up or one.rows != two.rows:
            tiles_T4 = starts.new_empty(most + 1, 4)
            map_tiles[(triton.cdiv(most, 16),)](
                starts,
                tiles_T4,
                num_experts,
                most,
                ROWS=tile.rows,
                EXPERTS=starts.shape[0],
                T=16,
            )
        stay[(programs,)](
            TensorDescriptor.from_tensor(a_PK, [tile.rows, tile.step]),
            TensorDescriptor.from_tensor(w_KN, [tile.step, tile.columns]),
            out,
            weight_RK,
            tiles_T4,
            most,
            sorted_picks,
            a_PK.shape[1],
            out.shape[1],
            limit,
            UP=up,
            WEIGHTED=weighted,
            ROUNDED=rounded,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            STEP=tile.step,
            PROGRAMS=programs,
            num_warps=tile.warps,
            num_stages=tile.stages,
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
) -> Tensor:
    return run(x_RD, ids_RK, weight_RK, gate_up_EDI, down_EID, limit, first, parts, False, False)
