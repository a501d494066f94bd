"""The two attention layers: KDA and DSA (spec glm53, 2.3 to 2.5).

R rows, D hidden, H heads, K key and V value sizes, C channels or latent rank, B streams, W window
rows, L lanes, T tail or tap rows, M pool members.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.family_api import Rows
from tensorfold.core.ops import Ops
from tensorfold.core.ops.hc_split import sigmoid
from tensorfold.core.ops.pick_tokens import list_of, list_width, picks_of
from tensorfold.core.ops.wide import wide
from tensorfold.families.common.sharing import Sharing, shared
from tensorfold.families.glm53.config import GRID, Config
from tensorfold.families.glm53.plan import Plan, history_sources
from tensorfold.families.glm53.state import DsaState, KdaState
from tensorfold.families.glm53.weights import Dsa, Kda

L2_EPS = 1e-6
INDEX_NORM_EPS = 1e-6


class Pending(NamedTuple):
    """What a window's KDA layer keeps until it is known how many of its rows count.

    u_RC are the rows before the convolution; `replay` the recurrence's inputs by window, none
    where the state is left already.
    """

    u_RC: Tensor
    replay: tuple[Tensor, ...]


class KdaInputs(NamedTuple):
    """A KDA layer's rows after convolution and norms; gate is the decay's logarithm, which is in
    float32 at least, as beta is."""

    q_RHK: Tensor
    k_RHK: Tensor
    v_RHV: Tensor
    gate_RHK: Tensor
    beta_RH: Tensor


def kda_inputs(
    config: Config, ops: Ops, w: Kda, state: KdaState, plan: Plan, joined: Tensor
) -> tuple[Tensor, KdaInputs, Tensor]:
    """The rows before the convolution, the recurrence's inputs, and the output gate [R, H * V]."""
    heads, size = config.kda_heads, config.kda_size
    inner = heads * size
    u_RC, down_RK, beta_RH = joined.split([3 * inner, 2 * size, heads], dim=-1)
    y_RC = ops.short_conv(u_RC, state.history_LHC, plan.source_RT, w.taps_CT)
    q_RHK, k_RHK, v_RHV = y_RC.view(-1, 3, heads, size).unbind(1)
    # a / sqrt(sum(a^2) + eps) is the RMS norm with eps / size, times size ** -0.5.
    q_RHK = ops.rms_norm(q_RHK, w.q_scale_K, L2_EPS / size)
    k_RHK = ops.rms_norm(k_RHK, w.k_scale_K, L2_EPS / size)
    up_R2C = wide(ops.linear_heads(down_RK.reshape(-1, 2, size), w.gates_2KC))
    forget_RHK = (up_R2C[:, 0] + w.dt_bias).view(-1, heads, size)
    gate_RHK = config.gate_bound * sigmoid(w.rate_H1 * forget_RHK)
    inputs = KdaInputs(q_RHK, k_RHK, v_RHV, gate_RHK, sigmoid(wide(beta_RH)))
    return u_RC, inputs, up_R2C[:, 1]


def kda_output(config: Config, ops: Ops, w: Kda, o_RHV: Tensor, gate_RC: Tensor) -> Tensor:
    normed = ops.rms_norm(o_RHV, w.out_norm, config.norm_eps).flatten(1)
    return ops.linear_parts((normed * sigmoid(gate_RC)).to(w.o_proj.dtype), w.o_proj)


def kda_prompt(
    config: Config, ops: Ops, w: Kda, state: KdaState, plan: Plan, rows: Rows, x_RD: Tensor
) -> Tensor:
    """Prompt rows: the block form; the state is left after them."""
    assert rows.blocks_NT is not None
    assert rows.block_lane_N is not None
    joined = ops.linear(x_RD, w.in_proj)
    u_RC, inputs, out_gate_RC = kda_inputs(config, ops, w, state, plan, joined)
    o_RHV = ops.kda_blocks(*inputs, rows.blocks_NT, rows.block_lane_N, state.state_LHKV)
    set_history(state, u_RC, plan.history_BH, rows.lane_B)
    return kda_output(config, ops, w, o_RHV, out_gate_RC)


def set_history(state: KdaState, u_RC: Tensor, source_BH: Tensor, lane_B: Tensor) -> None:
    """source_BH names rows of [history, u]; u may be large, so they are not joined."""
    kept_SC = state.history_LHC.flatten(0, 1)
    held = kept_SC.shape[0]
    old_BHC = kept_SC[source_BH.clamp(max=held - 1)]
    new_BHC = u_RC[(source_BH - held).clamp(min=0)]
    history_BHC = torch.where((source_BH < held)[..., None], old_BHC, new_BHC)
    state.history_LHC.index_copy_(0, lane_B, history_BHC)


def kda_window(
    config: Config, ops: Ops, w: Kda, state: KdaState, plan: Plan, rows: Rows, x_RD: Tensor
) -> tuple[Tensor, Pending]:
    """Window rows: the recurrence; the state waits for `kda_settle` where a row may be rejected."""
    assert rows.rows_BW is not None
    joined = ops.linear(x_RD, w.in_proj)
    u_RC, inputs, out_gate_RC = kda_inputs(config, ops, w, state, plan, joined)
    by_window = tuple(over_windows(part, rows.rows_BW) for part in inputs)
    # The first row of a window is never rejected, unless the window may be run again.
    alone = rows.rows_BW.shape[1] == 1 and rows.sure
    count_B = rows.count_B if alone else torch.zeros_like(rows.count_B)
    o_BWHV = ops.kda_steps(*by_window, rows.lane_B, count_B, state.state_LHKV)
    # One row past the end takes what the missing rows of short windows gave.
    o_RHV = o_BWHV.new_zeros(x_RD.shape[0] + 1, *o_BWHV.shape[2:])
    o_RHV = o_RHV.index_put((rows.rows_BW,), o_BWHV)[:-1]
    pending = Pending(u_RC.contiguous(), () if alone else by_window)
    return kda_output(config, ops, w, o_RHV, out_gate_RC), pending


def over_windows(part_R: Tensor, rows_BW: Tensor) -> Tensor:
    """[R, ...] to [B, W, ...]; missing rows are zero, which leaves a recurrence as it is."""
    padded = torch.cat([part_R, part_R.new_zeros(1, *part_R.shape[1:])])
    return padded[rows_BW]


def kda_settle(
    config: Config, ops: Ops, state: KdaState, pending: Pending, rows: Rows, accepted_B: Tensor
) -> None:
    """Leave the state as after each stream's first accepted_B rows (at least one)."""
    if pending.replay:
        ops.kda_steps(*pending.replay, rows.lane_B, accepted_B, state.state_LHKV)
    source_BH = history_sources(rows, accepted_B, config.conv - 1)
    set_history(state, pending.u_RC, source_BH, rows.lane_B)


def dsa(
    config: Config, ops: Ops, w: Dsa, state: DsaState, plan: Plan, rows: Rows, x_RD: Tensor
) -> tuple[Tensor, Tensor]:
    """Sparse attention, one form for prompt and window rows; also returns the token lists."""
    size, heads = config.index_size, config.index_heads
    joined = ops.linear(x_RD, w.in_proj)
    widths = [config.q_rank, config.kv_rank, size, size, heads]
    q_down, latent_RC, key_RD, gate_RD, weight_RH = joined.split(widths, dim=-1)
    state.latents_SC.index_copy_(
        0, rows.slot_R, ops.rms_norm(latent_RC.contiguous(), w.kv_norm, config.norm_eps)
    )
    key_RD = ops.layer_norm(key_RD.contiguous(), w.k_norm, w.k_norm_bias, INDEX_NORM_EPS)
    close_pools(ops, w, state, plan, torch.cat([key_RD, gate_RD], -1))
    q_R = ops.rms_norm(q_down.contiguous(), w.q_norm, config.norm_eps)
    list_RK = plan.dense_RK
    if list_RK is None:
        index = partial(pick, config, ops, w, state, rows, q_R, weight_RH)
        if plan.sharing is None:
            list_RK = index(slice(None))
        else:
            list_RK = pick_shared(config, ops, rows, plan.sharing, index)
    q_RHC = ops.linear_heads(ops.linear(q_R, w.q_b).view(-1, config.heads, config.nope), w.key_HNC)
    o_RHC = ops.latent_attention(
        q_RHC, state.latents_SC, rows.table_LP, rows.lane_R, list_RK, GRID, config.nope**-0.5
    )
    o_RHV = ops.linear_heads(o_RHC, w.value_HCV)
    return ops.linear_parts(o_RHV.flatten(1), w.o_proj), list_RK


def pick(
    config: Config,
    ops: Ops,
    w: Dsa,
    state: DsaState,
    rows: Rows,
    q_R: Tensor,
    weight_RH: Tensor,
    part: Tensor | slice,
) -> Tensor:
    """The token lists of some of the rows."""
    return ops.pick_tokens(
        ops.linear(q_R[part], w.index_q).view(-1, config.index_heads, config.index_size),
        weight_RH[part].contiguous(),
        state.pools_SD,
        rows.table_LP,
        rows.lane_R[part],
        rows.position_R[part],
        config.index_top,
        config.pool,
        GRID,
        rows.width,
    )


def pick_shared(
    config: Config,
    ops: Ops,
    rows: Rows,
    made: Sharing,
    index: Callable[[Tensor], Tensor],
) -> Tensor:
    """As `index` of all rows, of which each rank picks for its own share; picks are gathered."""

    def picks(own_S: Tensor) -> Tensor:
        return picks_of(index(own_S), rows.position_R[own_S], config.index_top, config.pool)

    picks_RP = shared(ops.gather, made, picks)
    width = list_width(config.index_top, config.pool, rows.width)
    return list_of(picks_RP, rows.position_R, config.pool, width)


def close_pools(ops: Ops, w: Dsa, state: DsaState, plan: Plan, row_RE: Tensor) -> None:
    """Write the pools that these rows close, and the rows themselves into the tail."""
    tail = state.tail_LTE.flatten(0, 1)
    member_RME = torch.cat([tail, row_RE])[plan.pool_source_RM]
    key_RMD, gate_RMD = member_RME.chunk(2, -1)
    state.pools_SD.index_copy_(0, plan.pool_slot_R, ops.pool_keys(key_RMD, gate_RMD, w.ape_MD))
    tail.index_copy_(0, plan.tail_slot_R, row_RE)
