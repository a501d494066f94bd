"""This backend's candidates for every op: library products first, fixed tiles behind them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tensorfold.backends.cpu_reference import experts, memory, ops, recurrence, sparse
from tensorfold.backends.cpu_reference.products import BY_EIGHT, BY_FOUR, TILES, Products
from tensorfold.core.engine.optable import Candidate, Candidates
from tensorfold.core.ops import noise_at, noise_bounds, rank_keys, rotate

Call = Callable[..., Any]

BY_PRODUCT: dict[str, Call] = {
    "linear": ops.linear,
    "linear_parts": ops.linear_parts,
    "linear_heads": ops.linear_heads,
    "hc_split": ops.hc_split,
    "hc_join": ops.hc_join,
    "kda_steps": recurrence.kda_steps,
    "kda_blocks": recurrence.kda_blocks,
    "pick_tokens": sparse.pick_tokens,
    "latent_attention": sparse.latent_attention,
    "experts": experts.experts,
    "hc_mix": ops.hc_mix,
    "hc_collapse": ops.hc_collapse,
    "pick_rows": memory.pick_rows,
    "sink_attention": memory.sink_attention,
    "experts_weighted": experts.experts_weighted,
}
NORMS: dict[str, tuple[Call, Call]] = {
    "rms_norm": (ops.rms_norm, ops.rms_norm_apart),
    "layer_norm": (ops.layer_norm, ops.layer_norm_apart),
    "engram_gate": (ops.engram_gate, ops.engram_gate_apart),
}
WITHOUT: dict[str, Call] = {
    "short_conv": ops.short_conv,
    "pool_keys": ops.pool_keys,
    "rotate": rotate.reference,
    "rank_keys": rank_keys.reference,
    "exp_sums": ops.exp_sums,
    "running_sums": ops.running_sums,
    "noise_bounds": noise_bounds.reference,
    "noise_at": noise_at.reference,
    "route": ops.route,
    "route_softplus": ops.route_softplus,
}


def candidates(forms: tuple[Products, ...] = (BY_FOUR, BY_EIGHT, TILES)) -> Candidates:
    """By op, one candidate a form of the products under it, in order of preference."""
    found: dict[str, tuple[Candidate, ...]] = {}
    for name, function in BY_PRODUCT.items():
        found[name] = tuple(
            Candidate(label=p.label, call=partial(function, p), library=p.library) for p in forms
        )
    for name, (library, apart) in NORMS.items():
        found[name] = (
            Candidate(label="library norm", call=library, library=True),
            Candidate(label="one row at a time", call=apart),
        )
    for name, function in WITHOUT.items():
        found[name] = (Candidate(label="written out", call=function),)
    return found
