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
from tensorfold.families.dsv41.attention import Picked, Role, attend, leave, narrowed
from tensorfold.families.dsv41.config import Config
from tensorfold.families.dsv41.engram import look_up
from tensorfold.families.dsv41.plan import Memory, Plan, Window, make
from tensorfold.families.dsv41.shortcut import Cut
from tensorfold.families.dsv41.state import SourceState
from tensorfold.families.dsv41.weights import Attention, Engram, Hyper, Mlp, Moe


class Streams(NamedTuple):
    """The residual streams x_RND, and the weights pre_RN by which the next sublayer reads them."""

    x_RND: Tensor
    pre_RN: Tensor

    def at(self, row_Q: Tensor) -> Streams:
        return Streams(self.x_RND[row_Q], self.pre_RN[row_Q])


def begin(config: Config, embed_VD: Tensor, ids_R: Tensor) -> Streams:
    """Every stream starts as the embedding; the first sublayer reads the first of them."""
    embedded_RD = embed_VD[ids_R]
    x_RND = embedded_RD[:, None].expand(-1, config.streams, -1).contiguous()
    first_N = torch.arange(config.streams, device=embedded_RD.device) == 0
    pre_RN = first_N.to(wide_dtype(embedded_RD.dtype)).expand(embedded_RD.shape[0], -1).contiguous()
    return Streams(x_RND, pre_RN)


class Mixed(NamedTuple):
    """The next sublayer's reading weights, and what `Ops.hc_join` needs."""

    pre_RN: Tensor
    post_RN: Tensor
    comb_RNN: Tensor


def entering(config: Config, ops: Ops, w: Hyper, s: Streams) -> Tensor:
    """A sublayer's normed input."""
    return ops.rms_norm(ops.hc_collapse(s.x_RND, s.pre_RN), w.norm, config.norm_eps)


def mixed(config: Config, ops: Ops, w: Hyper, s: Streams) -> Mixed:
    return Mixed(
        *ops.hc_mix(s.x_RND, w.fn, w.base, w.scale, config.norm_eps, config.hc_eps, config.sinkhorn)
    )


def put_back(ops: Ops, y_RD: Tensor, s: Streams, mix: Mixed) -> Streams:
    """A sublayer's output put back into the streams it read."""
    return Streams(ops.hc_join(y_RD, s.x_RND, mix.post_RN, mix.comb_RNN), mix.pre_RN)


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
    cut: Cut | None,
    picked: Picked,
    s: Streams,
) -> tuple[Streams, Picked]:
    """With a `cut`, what is given back is of the rows that go on."""
    x_RD = entering(config, ops, w, s)
    s = s if cut is None else s.at(cut.goes_Q)
    mix = mixed(config, ops, w, s)
    y_RD, picked = attend(
        config, ops, own, window_LTC, state, window, plan, role, cut, picked, x_RD
    )
    return put_back(ops, y_RD, s, mix), picked


def leaving_sublayer(
    config: Config,
    ops: Ops,
    w: Hyper,
    own: Attention,
    window_LTC: Tensor,
    state: SourceState | None,
    window: Window,
    plan: Memory | None,
    keys_T: Tensor,
    s: Streams,
) -> None:
    """Attention where no row goes on: only what rows leave for others."""
    x_RD = entering(config, ops, w, s)
    leave(config, ops, own, window_LTC, state, window, plan, keys_T, x_RD)


def moe_sublayer(
    config: Config, ops: Ops, w: Hyper, own: Moe, top: int, real_R1: Tensor, s: Streams
) -> Streams:
    y_RD = moe(config, ops, own, top, real_R1, entering(config, ops, w, s))
    return put_back(ops, y_RD, s, mixed(config, ops, w, s))


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
    """The functions of every kind of sublayer, and what stands before them, as they are or each
    compiled by itself."""

    plan: Callable[..., Plan]
    names: Callable[..., Tensor]
    begin: Callable[..., Streams]
    attention: Callable[..., tuple[Streams, Picked]]
    leaving: Callable[..., None]
    moe: Callable[..., Streams]
    engram: Callable[..., Streams]


PLAIN = Kinds(
    plan=make,
    names=look_up,
    begin=begin,
    attention=attention_sublayer,
    leaving=leaving_sublayer,
    moe=moe_sublayer,
    engram=engram_sublayer,
)
