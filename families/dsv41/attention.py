"""Windowed attention with compressed rows, and the index that picks them (spec dsv41, 2.5 to 2.7).

R rows, D hidden or index size, H heads, C head size, W window rows, K listed rows, B blocks,
G groups, L lanes, T ring rows, M members of a compressed row. Where a layer is cut (`Cut`), T are
the rows that leave a row in the window, and Q those that go on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.ops import Ops
from tensorfold.core.ops.pick_tokens import slots
from tensorfold.core.ops.rounding import fp4_round, fp4_round_fine, fp8_round
from tensorfold.families.common.sharing import shared
from tensorfold.families.dsv41.config import Config
from tensorfold.families.dsv41.plan import Memory, Window
from tensorfold.families.dsv41.rope import Turn, rotate
from tensorfold.families.dsv41.shortcut import Cut
from tensorfold.families.dsv41.state import SourceState
from tensorfold.families.dsv41.weights import Attention, Compressor, Index


class Role(NamedTuple):
    """What an index does with candidates: `publishes` them, or is `restricted` to them."""

    publishes: bool = False
    restricted: bool = False


class Picked(NamedTuple):
    """What an index hands to the layers after it: buffer rows slot_RK, -1 where unused, and the
    candidate blocks_RB of the last layer that published some."""

    slot_RK: Tensor
    blocks_RB: Tensor

    def at(self, row_Q: Tensor) -> Picked:
        return Picked(self.slot_RK[row_Q], self.blocks_RB[row_Q])


def nothing_picked(rows: int, like: Tensor) -> Picked:
    return Picked(like.new_empty(rows, 0), like.new_empty(rows, 0))


def narrowed(config: Config, x: Tensor) -> Tensor:
    """The input of a product whose weight the release packs (2.10)."""
    return fp8_round(x) if config.faithful else x


def compress(
    config: Config, ops: Ops, w: Compressor, state: SourceState, plan: Memory, x_RD: Tensor
) -> None:
    """Write the compressed rows that these rows close, their index keys, and the raw values."""
    raw_RE = ops.linear(x_RD, w.proj)
    if state.open_LTE is None:
        latent_RC = raw_RE
    else:
        opened = state.open_LTE.flatten(0, 1)
        member_RME = torch.cat([opened, raw_RE])[plan.member_RM]
        value_RMC, gate_RMC = member_RME.chunk(2, -1)
        even_MC = gate_RMC.new_zeros(gate_RMC.shape[1:])
        latent_RC = ops.pool_keys(value_RMC, gate_RMC, even_MC).to(x_RD.dtype)
        opened.index_copy_(0, plan.open_R, raw_RE)
    latent_RC = ops.rms_norm(latent_RC.contiguous(), w.norm, config.norm_eps)
    key_RD = ops.rms_norm(ops.linear(latent_RC, w.index_proj), w.index_norm, config.norm_eps)
    key_RD, latent_RC = rotate(ops, key_RD, plan.turn), rotate(ops, latent_RC, plan.turn)
    if config.faithful:
        key_RD, latent_RC = fp4_round(key_RD), fp4_round_fine(latent_RC)
    state.keys_SD.index_copy_(0, plan.slot_R, key_RD)
    state.latents_SC.index_copy_(0, plan.slot_R, latent_RC)


def choose(
    config: Config,
    ops: Ops,
    w: Index,
    state: SourceState,
    window: Window,
    plan: Memory,
    role: Role,
    picked: Picked,
    q_RK: Tensor,
    x_RD: Tensor,
) -> Picked:
    """This index's choice; q_RK is the query's normed latent as products read it."""
    inputs = (config, ops, w, state, window, plan, role, picked, q_RK, x_RD)
    if plan.sharing is None:
        list_RK, blocks_RB = pick(*inputs, slice(None))
    else:
        both_RE = shared(ops.gather, plan.sharing, lambda own_S: torch.cat(pick(*inputs, own_S), 1))
        widths = [config.index_top, config.candidate_blocks if role.publishes else 0]
        # As indexes that are not shared leave them: a compiler tells views apart.
        list_RK, blocks_RB = (part.contiguous() for part in both_RE.split(widths, 1))
    slot_RK = slots(list_RK.clamp(min=0), plan.lane_R, plan.table_LP, plan.page)
    slot_RK = torch.where(list_RK < 0, -1, slot_RK)
    return Picked(slot_RK, blocks_RB if role.publishes else picked.blocks_RB)


def pick(
    config: Config,
    ops: Ops,
    w: Index,
    state: SourceState,
    window: Window,
    plan: Memory,
    role: Role,
    picked: Picked,
    q_RK: Tensor,
    x_RD: Tensor,
    part: Tensor | slice,
) -> tuple[Tensor, Tensor]:
    """Compressed rows and candidate blocks of some of the rows, numbered in their stream."""
    query_RHD = ops.linear(q_RK[part], w.q).view(-1, config.index_heads, config.index_size)
    query_RHD = rotate(ops, query_RHD, window.turn.at(part))
    if config.faithful:
        query_RHD = fp4_round(query_RHD)
    allowed_RB = picked.blocks_RB if role.restricted else picked.blocks_RB[:, :0]
    return ops.pick_rows(
        query_RHD,
        ops.linear(x_RD[part], w.heads),
        state.keys_SD,
        plan.table_LP,
        plan.lane_R[part],
        plan.visible_R[part],
        allowed_RB[part],
        config.index_top,
        config.candidate_blocks if role.publishes else 0,
        config.candidate_size,
        plan.page,
        plan.width,
    )


class Inputs(NamedTuple):
    """A layer's queries q_QHC and window rows kv_TC, turned, and the query's normed latent."""

    latent_QK: Tensor
    q_QHC: Tensor
    kv_TC: Tensor


def joined_inputs(config: Config, ops: Ops, w: Attention, x_TD: Tensor) -> tuple[Tensor, Tensor]:
    """The query's latent and the window row before their norms, one product."""
    joined = ops.linear(narrowed(config, x_TD), w.in_proj)
    q_down, kv_TC = joined.split([config.q_rank, config.head_size], -1)
    return q_down, kv_TC.contiguous()


def window_row(config: Config, ops: Ops, w: Attention, turn: Turn, kv_TC: Tensor) -> Tensor:
    return narrowed(config, rotate(ops, ops.rms_norm(kv_TC, w.kv_norm, config.norm_eps), turn))


def inputs(
    config: Config,
    ops: Ops,
    w: Attention,
    window: Window,
    x_TD: Tensor,
    within_Q: Tensor | None = None,
) -> Inputs:
    q_down, kv_TC = joined_inputs(config, ops, w, x_TD)
    if within_Q is not None:
        q_down = q_down[within_Q]
    latent_QK = ops.rms_norm(q_down.contiguous(), w.q_norm, config.norm_eps)
    latent_QK = narrowed(config, latent_QK)
    q_QHC = ops.linear(latent_QK, w.q_up).view(-1, config.heads, config.head_size)
    key_turn = window.turn if window.key_turn is None else window.key_turn
    kv_TC = window_row(config, ops, w, key_turn, kv_TC)
    return Inputs(latent_QK, rotate(ops, q_QHC, window.turn), kv_TC)


def output(config: Config, ops: Ops, w: Attention, window: Window, o_RHC: Tensor) -> Tensor:
    """Turned back, then each group's product and the product over all of them."""
    o_RHC = rotate(ops, o_RHC, window.turn, back=True)
    down_RGN = ops.linear_heads(o_RHC.reshape(o_RHC.shape[0], config.groups, -1), w.o_down_GKN)
    return ops.linear_parts(narrowed(config, down_RGN.flatten(1)), w.o_up)


def attend(
    config: Config,
    ops: Ops,
    w: Attention,
    window_LTC: Tensor,
    state: SourceState | None,
    window: Window,
    plan: Memory | None,
    role: Role,
    cut: Cut | None,
    picked: Picked,
    x_RD: Tensor,
) -> tuple[Tensor, Picked]:
    """One layer's attention; also what its index, or the one before it, picked.

    With a `cut` every row is compressed, and what is given back is of those that go on.
    """
    if w.compressor is not None:
        assert state is not None
        assert plan is not None
        compress(config, ops, w.compressor, state, plan, x_RD)
    within_Q = None
    if cut is not None:
        within_Q = cut.within_Q
        x_RD, picked = x_RD[cut.keys_T], picked.at(cut.goes_Q)
    given = inputs(config, ops, w, window, x_RD, within_Q)
    ring_SC = window_LTC.flatten(0, 1)
    memory_SC, slot_RK = ring_SC, picked.slot_RK[:, :0]
    if state is not None:
        assert plan is not None
        if w.indexer is not None:
            x_RD = x_RD if within_Q is None else x_RD[within_Q]
            latent_QK = given.latent_QK
            picked = choose(
                config, ops, w.indexer, state, window, plan, role, picked, latent_QK, x_RD
            )
        memory_SC, slot_RK = state.latents_SC, picked.slot_RK
    o_QHC = ops.sink_attention(
        given.q_QHC,
        ring_SC,
        given.kv_TC,
        window.source_RW,
        memory_SC,
        slot_RK,
        w.sink_H,
        config.head_size**-0.5,
    )
    ring_SC.index_copy_(0, window.slot_R, given.kv_TC)
    return output(config, ops, w, window, o_QHC), picked


def leave(
    config: Config,
    ops: Ops,
    w: Attention,
    window_LTC: Tensor,
    state: SourceState | None,
    window: Window,
    plan: Memory | None,
    keys_T: Tensor,
    x_RD: Tensor,
) -> None:
    """What rows leave for others where none of them goes on: as `attend` does it."""
    if w.compressor is not None:
        assert state is not None
        assert plan is not None
        compress(config, ops, w.compressor, state, plan, x_RD)
    if not keys_T.shape[0]:
        return
    _, kv_TC = joined_inputs(config, ops, w, x_RD[keys_T])
    turn = window.turn if window.key_turn is None else window.key_turn
    kv_TC = window_row(config, ops, w, turn, kv_TC)
    window_LTC.flatten(0, 1).index_copy_(0, window.slot_R, kv_TC)
