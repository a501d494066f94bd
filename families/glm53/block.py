"""One layer: an attention and an MLP sublayer, each inside hyper-connections (spec glm53, 2.1).

Functions of a layer's own weights and views, with no layer number in them: one graph a kind.
"""

from __future__ import annotations

from torch import Tensor

from tensorfold.core.family_api import Rows
from tensorfold.core.ops import Ops
from tensorfold.core.ops.experts import clamped_swiglu
from tensorfold.families.glm53.attention import Pending, dsa, kda_prompt, kda_window
from tensorfold.families.glm53.config import Config
from tensorfold.families.glm53.plan import Plan
from tensorfold.families.glm53.state import DsaState, KdaState
from tensorfold.families.glm53.weights import Hyper, Kda, Layer, Mlp, Moe


def enter(config: Config, ops: Ops, w: Hyper, x_RND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A sublayer's normed input, and what `Ops.hc_join` needs after it."""
    x_RD, post_RN, comb_RNN = ops.hc_split(
        x_RND, w.fn, w.base, w.scale, config.norm_eps, config.hc_eps, config.sinkhorn
    )
    return ops.rms_norm(x_RD, w.norm, config.norm_eps), post_RN, comb_RNN


def mlp(config: Config, ops: Ops, w: Mlp, x_RD: Tensor) -> Tensor:
    return ops.linear_parts(
        clamped_swiglu(ops.linear(x_RD, w.gate_up), config.swiglu_limit), w.down
    )


def moe(config: Config, ops: Ops, w: Moe, x_RD: Tensor) -> Tensor:
    ids_RK, weight_RK = ops.route(
        ops.linear(x_RD, w.router),
        w.bias,
        config.experts_per_token,
        config.routed_scale,
        config.normalise,
    )
    routed = ops.experts(x_RD, ids_RK, weight_RK, w.gate_up_EDI, w.down_EID, config.swiglu_limit)
    return routed + mlp(config, ops, w.shared, x_RD)


def feed_forward(config: Config, ops: Ops, w: Mlp | Moe, x_RD: Tensor) -> Tensor:
    return moe(config, ops, w, x_RD) if isinstance(w, Moe) else mlp(config, ops, w, x_RD)


def layer(
    config: Config,
    ops: Ops,
    w: Layer,
    state: KdaState | DsaState,
    plan: Plan,
    rows: Rows,
    x_RND: Tensor,
) -> tuple[Tensor, Pending | Tensor | None]:
    """One layer over the streams [R, N, D]; also what a KDA window waits with, or DSA's lists."""
    extra: Pending | Tensor | None = None
    x_RD, post_RN, comb_RNN = enter(config, ops, w.attention_hyper, x_RND)
    if isinstance(w.attention, Kda):
        assert isinstance(state, KdaState)
        if rows.rows_BW is None:
            y_RD = kda_prompt(config, ops, w.attention, state, plan, rows, x_RD)
        else:
            y_RD, extra = kda_window(config, ops, w.attention, state, plan, rows, x_RD)
    else:
        assert isinstance(state, DsaState)
        y_RD, extra = dsa(config, ops, w.attention, state, plan, rows, x_RD)
    x_RND = ops.hc_join(y_RD, x_RND, post_RN, comb_RNN)
    x_RD, post_RN, comb_RNN = enter(config, ops, w.mlp_hyper, x_RND)
    y_RD = feed_forward(config, ops, w.mlp, x_RD)
    return ops.hc_join(y_RD, x_RND, post_RN, comb_RNN), extra
