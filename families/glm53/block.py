"""The kinds of sublayer, each inside hyper-connections (spec glm53, 2.1).

Functions of a sublayer's own weights and views, with no layer number in them: one graph a kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from tensorfold.core.family_api import Rows
from tensorfold.core.ops import Ops
from tensorfold.core.ops.experts import clamped_swiglu
from tensorfold.core.ops.wide import wide
from tensorfold.families.common.padding import of_real_rows
from tensorfold.families.glm53.attention import (
    Pending,
    dsa,
    kda_prompt,
    kda_settle,
    kda_window,
)
from tensorfold.families.glm53.config import Config
from tensorfold.families.glm53.plan import Plan, make
from tensorfold.families.glm53.state import DsaState, KdaState
from tensorfold.families.glm53.weights import Dsa, Hyper, Kda, Mlp, Moe


def enter(config: Config, ops: Ops, w: Hyper, x_RND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A sublayer's normed input, and what `Ops.hc_join` needs after it."""
    x_RD, post_RN, comb_RNN = ops.hc_split(
        x_RND, w.fn, w.base, w.scale, config.norm_eps, config.hc_eps, config.sinkhorn
    )
    return ops.rms_norm(x_RD, w.norm, config.norm_eps), post_RN, comb_RNN


def leave(config: Config, ops: Ops, norm: Tensor, x_RND: Tensor) -> Tensor:
    """Final-normed hidden rows [R, D]: the streams' mean, added in order, since a library's sum
    may follow the number of rows."""
    total_RD = wide(x_RND[:, 0])
    for stream in range(1, x_RND.shape[1]):
        total_RD = total_RD + x_RND[:, stream]
    mean_RD = (total_RD * (1 / x_RND.shape[1])).to(x_RND.dtype)
    return ops.rms_norm(mean_RD, norm, config.norm_eps)


def mlp(config: Config, ops: Ops, w: Mlp, x_RD: Tensor) -> Tensor:
    hidden = clamped_swiglu(wide(ops.linear(x_RD, w.gate_up)), config.swiglu_limit)
    return ops.linear_parts(hidden.to(x_RD.dtype), w.down)


def moe(config: Config, ops: Ops, w: Moe, real_R1: Tensor, x_RD: Tensor) -> Tensor:
    ids_RK, weight_RK = ops.route(
        ops.linear(x_RD, w.router),
        w.bias,
        config.experts_per_token,
        config.routed_scale,
        config.normalise,
    )
    routed = ops.experts(
        x_RD,
        of_real_rows(ids_RK, real_R1),
        weight_RK,
        w.gate_up_EDI,
        w.down_EID,
        config.swiglu_limit,
        w.first,
        w.parts,
    )
    return routed + mlp(config, ops, w.shared, x_RD)


def kda_prompt_sublayer(
    config: Config, ops: Ops, w: Hyper, own: Kda, state: KdaState, plan: Plan, rows: Rows, x: Tensor
) -> Tensor:
    """Streams [R, N, D] through a KDA sublayer, prompt form; so the others below."""
    x_RD, post_RN, comb_RNN = enter(config, ops, w, x)
    y_RD = kda_prompt(config, ops, own, state, plan, rows, x_RD)
    return ops.hc_join(y_RD, x, post_RN, comb_RNN)


def kda_window_sublayer(
    config: Config, ops: Ops, w: Hyper, own: Kda, state: KdaState, plan: Plan, rows: Rows, x: Tensor
) -> tuple[Tensor, Pending]:
    """The window form; also what waits until it is known how many rows count."""
    x_RD, post_RN, comb_RNN = enter(config, ops, w, x)
    y_RD, pending = kda_window(config, ops, own, state, plan, rows, x_RD)
    return ops.hc_join(y_RD, x, post_RN, comb_RNN), pending


def dsa_sublayer(
    config: Config, ops: Ops, w: Hyper, own: Dsa, state: DsaState, plan: Plan, rows: Rows, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Also the token lists [R, K]."""
    x_RD, post_RN, comb_RNN = enter(config, ops, w, x)
    y_RD, list_RK = dsa(config, ops, own, state, plan, rows, x_RD)
    return ops.hc_join(y_RD, x, post_RN, comb_RNN), list_RK


def mlp_sublayer(config: Config, ops: Ops, w: Hyper, own: Mlp, x: Tensor) -> Tensor:
    x_RD, post_RN, comb_RNN = enter(config, ops, w, x)
    return ops.hc_join(mlp(config, ops, own, x_RD), x, post_RN, comb_RNN)


def moe_sublayer(
    config: Config, ops: Ops, w: Hyper, own: Moe, real_R1: Tensor, x: Tensor
) -> Tensor:
    x_RD, post_RN, comb_RNN = enter(config, ops, w, x)
    return ops.hc_join(moe(config, ops, own, real_R1, x_RD), x, post_RN, comb_RNN)


class Kinds(NamedTuple):
    """The functions of every kind of sublayer, and what stands before and after them, as they are
    or each compiled by itself."""

    kda_prompt: Callable[..., Tensor]
    kda_window: Callable[..., tuple[Tensor, Pending]]
    dsa: Callable[..., tuple[Tensor, Tensor]]
    mlp: Callable[..., Tensor]
    moe: Callable[..., Tensor]
    settle: Callable[..., None]
    plan: Callable[..., Plan]
    leave: Callable[..., Tensor]


PLAIN = Kinds(
    kda_prompt=kda_prompt_sublayer,
    kda_window=kda_window_sublayer,
    dsa=dsa_sublayer,
    mlp=mlp_sublayer,
    moe=moe_sublayer,
    settle=kda_settle,
    plan=make,
    leave=leave,
)
