"""`across` of `kda_blocks` on a Hopper GPU, for bfloat16 heads of 128 keys and 128 values.

A program has some columns of one head's state and walks a lane's blocks. The state is kept turned,
so that each operand of the tensor cores lies along what is summed, as they read this format; what
a block needs of its rows is made while the products of the block before it run.

T rows of a block, K keys, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import async_copy

from tensorfold.backends.cuda_triton.kernels.attend_hopper import HOPPER, barrier
from tensorfold.core.ops.kda_blocks import BLOCK

KEY = 128
COLUMNS = 64
WARPS = 8


@gluon.jit
def rows_of(x, rows, block, t, num_rows, head, KEY: gl.constexpr, key, HEADS: gl.constexpr):
    row = gl.load(rows + block * t.shape[0] + t).to(gl.int64)
    at = gl.expand_dims((row * HEADS + head) * KEY, 1) + gl.expand_dims(key, 0)
    return gl.load(x + at, mask=gl.expand_dims(row < num_rows, 1), other=0.0)


@gluon.jit
def fetch(shared, x, left, by_copy: gl.constexpr):
    """Have rows [left, left + T) of a scratch copied into shared memory."""
    t = gl.arange(0, shared.shape[0], layout=gl.SliceLayout(1, by_copy))
    column = gl.arange(0, shared.shape[1], layout=gl.SliceLayout(0, by_copy))
    at = gl.expand_dims((left + t) * shared.shape[1], 1) + gl.expand_dims(column, 0)
    async_copy.async_copy_global_to_shared(shared, x + at)


@gluon.jit(do_not_specialize=["num_rows", "num_blocks"])
def across(
    q, k, rows, lane, total, value, erase, inner, state, out, num_rows, num_blocks,
    HEADS: gl.constexpr, K: gl.constexpr, C: gl.constexpr, T: gl.constexpr,
):  # fmt: skip
    """A program of a lane's first block here walks all of the lane's; those of others have none."""
    by_row: gl.constexpr = gl.BlockedLayout([4, 2], [1, 32], [8, 1], [1, 0])
    by_copy: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [8, 1], [1, 0])
    by_state: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, K // 2, 8])
    by_time: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, T // 2, 8])
    f32: gl.constexpr = gl.float32
    head = gl.program_id(1)
    start = gl.program_id(2)
    own_lane = gl.load(lane + start)
    previous = gl.load(lane + gl.maximum(start - 1, 0))
    if (start == 0) | (previous != own_lane):
        first = gl.program_id(0) * C
        stop = start + 1
        while (stop < num_blocks) & (gl.load(lane + gl.minimum(stop, num_blocks - 1)) == own_lane):
            stop += 1
        mem_s = gl.allocate_shared_memory(
            f32, [C, K], gl.NVMMASharedLayout.get_default_for([C, K], f32)
        )
        erase_s = gl.allocate_shared_memory(
            f32, [T, K], gl.NVMMASharedLayout.get_default_for([T, K], f32)
        )
        raised_s = gl.allocate_shared_memory(
            f32, [T, K], gl.NVMMASharedLayout.get_default_for([T, K], f32)
        )
        carry_s = gl.allocate_shared_memory(
            f32, [K, T], gl.NVMMASharedLayout.get_default_for([K, T], f32)
        )
        inner_s = gl.allocate_shared_memory(
            f32, [T, T], gl.NVMMASharedLayout.get_default_for([T, T], f32)
        )
        fresh_s = gl.allocate_shared_memory(
            f32, [C, T], gl.NVMMASharedLayout.get_default_for([C, T], f32)
        )
        t = gl.arange(0, T, layout=gl.SliceLayout(1, by_row))
        key = gl.arange(0, K, layout=gl.SliceLayout(0, by_row))
        state_key = gl.arange(0, K, layout=gl.SliceLayout(0, by_state))
        state_column = gl.arange(0, C, layout=gl.SliceLayout(1, by_state))
        time = gl.arange(0, T, layout=gl.SliceLayout(0, by_time))
        column = first + gl.arange(0, C, layout=gl.SliceLayout(1, by_time))
        own = state + (own_lane.to(gl.int64) * HEADS + head) * K * K + first
        state_at = own + gl.expand_dims(state_key * K, 0) + gl.expand_dims(state_column, 1)
        memory = gl.load(state_at).to(f32)

        block = start.to(gl.int64)
        left = (block * HEADS + head) * T
        fetch(erase_s, erase, left, by_copy)
        fetch(inner_s, inner, left, by_copy)
        async_copy.commit_group()
        row_at = gl.expand_dims((left + t) * K, 1) + gl.expand_dims(key, 0)
        value_at = gl.expand_dims((left + time) * K, 0) + gl.expand_dims(column, 1)
        q_TK = rows_of(q, rows, block, t, num_rows, head, K, key, HEADS)
        k_TK = rows_of(k, rows, block, t, num_rows, head, K, key, HEADS)
        total_TK = gl.load(total + row_at)
        last_K = gl.load(total + (left + T - 1) * K + key)
        fall_K = gl.load(total + (left + T - 1) * K + state_key)
        value_CT = gl.load(value + value_at)
        for step in range(stop - start):
            raised_s.store(q_TK.to(f32) * gl.exp(total_TK))
            carry_TK = k_TK.to(f32) * gl.exp(gl.expand_dims(last_K, 0) - total_TK)
            carry_s.store(gl.permute(carry_TK, (1, 0)))
            mem_s.store(memory)
            async_copy.wait_group(0)
            hopper.fence_async_shared()
            barrier()
            found = hopper.warpgroup_mma(
                mem_s, erase_s.permute((1, 0)), gl.zeros([C, T], f32, by_time), use_acc=False,
                is_async=True,
            )  # fmt: skip
            read = hopper.warpgroup_mma(
                mem_s, raised_s.permute((1, 0)), gl.zeros([C, T], f32, by_time), use_acc=False,
                is_async=True,
            )  # fmt: skip
            memory = memory * gl.expand_dims(gl.exp(fall_K), 0)
            old_value_CT = value_CT
            row = gl.load(rows + block * T + time).to(gl.int64)
            # The next block's rows are on their way while this one's products run.
            more = step + 1 < stop - start
            block += more.to(gl.int64)
            left = (block * HEADS + head) * T
            row_at = gl.expand_dims((left + t) * K, 1) + gl.expand_dims(key, 0)
            value_at = gl.expand_dims((left + time) * K, 0) + gl.expand_dims(column, 1)
            q_TK = rows_of(q, rows, block, t, num_rows, head, K, key, HEADS)
            k_TK = rows_of(k, rows, block, t, num_rows, head, K, key, HEADS)
            total_TK = gl.load(total + row_at)
            last_K = gl.load(total + (left + T - 1) * K + key)
            fall_K = gl.load(total + (left + T - 1) * K + state_key)
            value_CT = gl.load(value + value_at)
            found_CT, memory = hopper.warpgroup_mma_wait(1, deps=[found, memory])
            fresh_s.store(old_value_CT - found_CT)
            hopper.fence_async_shared()
            barrier()
            fetch(erase_s, erase, left, by_copy)
            read = hopper.warpgroup_mma(fresh_s, inner_s.permute((1, 0)), read, is_async=True)
            memory = hopper.warpgroup_mma(fresh_s, carry_s.permute((1, 0)), memory, is_async=True)
            read_CT, memory = hopper.warpgroup_mma_wait(0, deps=[read, memory])
            barrier()
            fetch(inner_s, inner, left, by_copy)
            async_copy.commit_group()
            out_at = gl.expand_dims((row * HEADS + head) * K, 0) + gl.expand_dims(column, 1)
            put = gl.expand_dims(row < num_rows, 0)
            gl.store(out + out_at, read_CT.to(out.dtype.element_ty), mask=put)
        async_copy.wait_group(0)
        gl.store(state_at, memory.to(state.dtype.element_ty))


def fits(q_RHK: Tensor, v_RHV: Tensor) -> bool:
    """Whether blocks of these rows run here."""
    if not q_RHK.is_cuda or torch.cuda.get_device_capability(q_RHK.device)[0] != HOPPER:
        return False
    return q_RHK.dtype == torch.bfloat16 and q_RHK.shape[2] == v_RHV.shape[2] == KEY


def launch(walked: Sequence[Any]) -> None:
    """`walked` is what `across` has, here and in `kda_blocks`, but for the sizes."""
    q_RHK, blocks = walked[0], walked[-1]
    heads = q_RHK.shape[1]
    across[(KEY // COLUMNS, heads, blocks)](
        *walked, HEADS=heads, K=KEY, C=COLUMNS, T=BLOCK, num_warps=WARPS
    )
