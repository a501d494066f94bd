"""The kinds of sublayer, each inside hyper-connections (spec dsv41, 2.2, 2.3 and 2.8).

A sublayer reads the streams by the weights that the sublayer before it made. Functions of a
sublayer's own weights and views, with no layer number in them: one graph a kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.ops import Ops
from tensorfold.core.ops.experts import clamped_swiglu
from tensorfold.core.ops.wide import wide, wide_dtype
from tensorfold.families.common.padding import of_real_rows
from tensorfold.families.dsv41.attention import Picked, Role, attend, narrowed
from tensorfold.families.dsv41.config import Config
from tensorfold.families.dsv41.plan import Memory, Window
from tensorfold.families.dsv41.state import SourceState
from tensorfold.families.dsv41.weights import Attention, Engram, Hyper, Mlp, Moe


class Streams(NamedTuple):
    """The residual streams x_RND, and the weights pre_RN by which the next sublayer reads them."""

    x_RND: Tensor
    pre_RN: Tensor


def begin(config: Config, embedded_RD: Tensor) -> Streams:
    """Every stream starts as the embedding; the first sublayer reads the first of them."""
    x_RND = embedded_RD[:, None].expand(-1, config.streams, -1).contiguous()
    first_N = torch.arange(config.streams, device=embedded_RD.device) == 0
    pre_RN = first_N.to(wide_dtype(embedded_RD.dtype)).expand(embedded_RD.shape[0], -1).contiguous()
    return Streams(x_RND, pre_RN)


def enter(config: Config, ops: Ops, w: Hyper, s: Streams) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A sublayer's normed input; the next one's reading weights; what `Ops.hc_join` needs."""
    pre_RN, post_RN, comb_RNN = ops.hc_mix(
        s.x_RND, w.fn, w.base, w.scale, config.norm_eps, config.hc_eps, config.sinkhorn
    )
    x_RD = ops.rms_norm(ops.hc_collapse(s.x_RND, s.pre_RN), w.norm, config.norm_eps)
    return x_RD, pre_RN, post_RN, comb_RNN


def shared(config: Config, ops: Ops, w: Mlp, narrow_RD: Tensor) -> Tensor:
    hidden = clamped_swiglu(wide(ops.linear(narrow_RD, w.gate_up)), config.swiglu_limit)
    return ops.linear_parts(narrowed(config, hidden.to(narrow_RD.dtype)), w.down)


def moe(config: Config, ops: Ops, w: Moe, top: int, real_R1: Tensor, x_RD: Tensor) -> Tensor:
    logit_RE = ops.linear(x_RD, w.router)
    ids_RK, weight_RK = ops.route_softplus(logit_RE, w.bias, top, config.routed_scale)
    narrow_RD = narrowed(config, x_RD)
    routed = ops.experts_weighted(
        narrow_RD,
        of_real_rows(ids_RK, real_R1),
        weight_RK,
        w.gate_up_EDI,
        w.down_EID,
        config.swiglu_limit,
        config.faithful,
        w.first,
        w.parts,
    )
    return routed + shared(config, ops, w.shared, narrow_RD)


def attention_sublayer(
    config: Config,
    ops: Ops,
    w: Hyper,
    own: Attention,
    window_LTC: Tensor,
    state: SourceState | None,
    window: Window,
    plan: Memory | None,
    role: Role,
    picked: Picked,
    s: Streams,
) -> tuple[Streams, Picked]:
    x_RD, pre_RN, post_RN, comb_RNN = enter(config, ops, w, s)
    y_RD, picked = attend(config, ops, own, window_LTC, state, window, plan, role, picked, x_RD)
    return Streams(ops.hc_join(y_RD, s.x_RND, post_RN, comb_RNN), pre_RN), picked


def moe_sublayer(
    config: Config, ops: Ops, w: Hyper, own: Moe, top: int, real_R1: Tensor, s: Streams
) -> Streams:
    x_RD, pre_RN, post_RN, comb_RNN = enter(config, ops, w, s)
    y_RD = moe(config, ops, own, top, real_R1, x_RD)
    return Streams(ops.hc_join(y_RD, s.x_RND, post_RN, comb_RNN), pre_RN)


def engram_sublayer(
    config: Config, ops: Ops, w: Engram, row_RE: Tensor, open_R: Tensor, s: Streams
) -> Streams:
    """row_RE are the looked-up table rows; open_R is 0 for rows that take nothing of them."""
    n, d = config.streams, config.hidden_size
    joined = ops.linear(narrowed(config, row_RE), w.proj)
    key_RND, value_RD = joined.split([n * d, d], -1)
    x_RND = ops.engram_gate(
        s.x_RND,
        key_RND.reshape(-1, n, d),
        value_RD.contiguous(),
        w.weight_ND,
        open_R,
        config.norm_eps,
    )
    return Streams(x_RND, s.pre_RN)


def tapped(entering: list[Tensor]) -> Tensor:
    """Streams as they entered the tapped layers, to their means side by side [R, taps * D]."""
    means = []
    for x_RND in entering:
        total_RD = wide(x_RND[:, 0])
        for stream in range(1, x_RND.shape[1]):
            total_RD = total_RD + x_RND[:, stream]
        means.append((total_RD * (1 / x_RND.shape[1])).to(x_RND.dtype))
    return torch.cat(means, -1)


class Kinds(NamedTuple):
    """The functions of every kind of sublayer, as they are or each compiled by itself."""

    attention: Callable[..., tuple[Streams, Picked]]
    moe: Callable[..., Streams]
    engram: Callable[..., Streams]


PLAIN = Kinds(attention=attention_sublayer, moe=moe_sublayer, engram=engram_sublayer)
