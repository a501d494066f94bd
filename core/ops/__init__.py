"""The op table: what a family's mathematics and the drawing of tokens may call, one file an op.

`Ops` is frozen and built once at start; a family holds it and never looks anything up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tensorfold.core.ops import (
    engram_gate,
    exp_sums,
    experts,
    experts_weighted,
    hc_collapse,
    hc_join,
    hc_mix,
    hc_split,
    kda_blocks,
    kda_steps,
    latent_attention,
    layer_norm,
    linear,
    linear_heads,
    linear_parts,
    noise_at,
    noise_bounds,
    pick_rows,
    pick_tokens,
    pool_keys,
    rank_keys,
    rms_norm,
    rotate,
    route,
    route_softplus,
    running_sums,
    short_conv,
    sink_attention,
)
from tensorfold.core.ops.contract import Case, OpSpec

__all__ = ["SPECS", "Case", "OpSpec", "Ops"]

SPECS: tuple[OpSpec, ...] = (
    linear.OP,
    linear_parts.OP,
    linear_heads.OP,
    rms_norm.OP,
    layer_norm.OP,
    hc_split.OP,
    hc_join.OP,
    short_conv.OP,
    kda_steps.OP,
    kda_blocks.OP,
    pool_keys.OP,
    pick_tokens.OP,
    latent_attention.OP,
    route.OP,
    experts.OP,
    hc_mix.OP,
    hc_collapse.OP,
    engram_gate.OP,
    pick_rows.OP,
    sink_attention.OP,
    route_softplus.OP,
    experts_weighted.OP,
    rotate.OP,
    rank_keys.OP,
    exp_sums.OP,
    running_sums.OP,
    noise_bounds.OP,
    noise_at.OP,
)


def itself(columns: Tensor) -> Tensor:
    return columns


def alone(part: Tensor) -> Tensor:
    return part[None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ops:
    """A backend's callables, each with the signature of its reference in `core/ops/<name>.py`."""

    linear: Callable[[Tensor, Tensor], Tensor]
    linear_parts: Callable[[Tensor, Tensor], Tensor]
    linear_heads: Callable[[Tensor, Tensor], Tensor]
    rms_norm: Callable[[Tensor, Tensor | None, float], Tensor]
    layer_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    hc_split: Callable[..., tuple[Tensor, Tensor, Tensor]]
    hc_join: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    short_conv: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    kda_steps: Callable[..., Tensor]
    kda_blocks: Callable[..., Tensor]
    pool_keys: Callable[[Tensor, Tensor, Tensor], Tensor]
    pick_tokens: Callable[..., Tensor]
    latent_attention: Callable[..., Tensor]
    route: Callable[..., tuple[Tensor, Tensor]]
    experts: Callable[..., Tensor]
    hc_mix: Callable[..., tuple[Tensor, Tensor, Tensor]]
    hc_collapse: Callable[[Tensor, Tensor], Tensor]
    engram_gate: Callable[..., Tensor]
    pick_rows: Callable[..., tuple[Tensor, Tensor]]
    sink_attention: Callable[..., Tensor]
    route_softplus: Callable[..., tuple[Tensor, Tensor]]
    experts_weighted: Callable[..., Tensor]
    rotate: Callable[[Tensor, Tensor, Tensor, bool], Tensor]
    rank_keys: Callable[[Tensor], Tensor]
    exp_sums: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    running_sums: Callable[[Tensor], Tensor]
    noise_bounds: Callable[[Tensor, Tensor, float], Tensor]
    noise_at: Callable[[Tensor, Tensor], Tensor]
    # Of products whose columns ranks cut, [R, own] to [R, all]; one rank has them all.
    join: Callable[[Tensor], Tensor] = itself
    # Of equal shapes on every rank, [...] to [ranks, ...], in rank order.
    gather: Callable[[Tensor], Tensor] = alone
