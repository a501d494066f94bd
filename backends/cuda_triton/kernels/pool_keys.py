"""`pool_keys`: a softmax over a pool's few members, channel by channel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 512


@triton.jit
def pool(
    keys,
    gates,
    ape,
    out,
    D,
    keys_by_pool,
    keys_by_member,
    gates_by_pool,
    gates_by_member,
    MEMBERS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < D
    most = tl.full((COLUMNS,), float("-inf"), tl.float32)
    for m in tl.static_range(MEMBERS):
        gate_at = gates + row * gates_by_pool + m * gates_by_member + column
        gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
        most = tl.maximum(most, gate + tl.load(ape + m * D + column, mask=inside, other=0.0))
    total = tl.zeros((COLUMNS,), tl.float32)
    value = tl.zeros((COLUMNS,), tl.float32)
    for m in tl.static_range(MEMBERS):
        gate_at = gates + row * gates_by_pool + m * gates_by_member + column
        gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
        gate += tl.load(ape + m * D + column, mask=inside, other=0.0)
        key_at = keys + row * keys_by_pool + m * keys_by_member + column
        raised = tl.exp(gate - most)
        total += raised
        value += raised * tl.load(key_at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * D + column, (value / total).to(out.dtype.element_ty), mask=inside)


def pool_keys(keys_PMD: Tensor, gates_PMD: Tensor, ape_MD: Tensor) -> Tensor:
    if keys_PMD.stride(2) != 1:
        keys_PMD = keys_PMD.contiguous()
    if gates_PMD.stride(2) != 1:
        gates_PMD = gates_PMD.contiguous()
    pools, members, size = keys_PMD.shape
    out_PD = keys_PMD.new_empty(pools, size)
    if pools:
        columns = min(COLUMNS, triton.next_power_of_2(size))
        pool[(pools, triton.cdiv(size, columns))](
            keys_PMD,
            gates_PMD,
            ape_MD.contiguous(),
            out_PD,
            size,
            keys_PMD.stride(0),
            keys_PMD.stride(1),
            gates_PMD.stride(0),
            gates_PMD.stride(1),
            MEMBERS=members,
            COLUMNS=columns,
            num_warps=1,
        )
    return out_PD
