"""This backend's candidates for every op."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tensorfold.backends.cuda_triton.kernels.engram_gate import engram_gate
from tensorfold.backends.cuda_triton.kernels.exp_sums import exp_sums
from tensorfold.backends.cuda_triton.kernels.experts import experts
from tensorfold.backends.cuda_triton.kernels.experts_weighted import experts_weighted
from tensorfold.backends.cuda_triton.kernels.hc_collapse import hc_collapse
from tensorfold.backends.cuda_triton.kernels.hc_join import hc_join
from tensorfold.backends.cuda_triton.kernels.hc_mix import hc_mix
from tensorfold.backends.cuda_triton.kernels.hc_split import hc_split
from tensorfold.backends.cuda_triton.kernels.kda_blocks import kda_blocks
from tensorfold.backends.cuda_triton.kernels.kda_steps import kda_steps
from tensorfold.backends.cuda_triton.kernels.latent_attention import latent_attention
from tensorfold.backends.cuda_triton.kernels.layer_norm import layer_norm
from tensorfold.backends.cuda_triton.kernels.linear import linear, parts_of
from tensorfold.backends.cuda_triton.kernels.linear_heads import linear_heads
from tensorfold.backends.cuda_triton.kernels.linear_parts import linear_parts
from tensorfold.backends.cuda_triton.kernels.noise_at import noise_at
from tensorfold.backends.cuda_triton.kernels.noise_bounds import noise_bounds
from tensorfold.backends.cuda_triton.kernels.pick_rows import pick_rows
from tensorfold.backends.cuda_triton.kernels.pick_tokens import pick_tokens
from tensorfold.backends.cuda_triton.kernels.pool_keys import pool_keys
from tensorfold.backends.cuda_triton.kernels.rank_keys import rank_keys
from tensorfold.backends.cuda_triton.kernels.rms_norm import rms_norm
from tensorfold.backends.cuda_triton.kernels.rotate import rotate
from tensorfold.backends.cuda_triton.kernels.route import route
from tensorfold.backends.cuda_triton.kernels.route_softplus import route_softplus
from tensorfold.backends.cuda_triton.kernels.running_sums import running_sums
from tensorfold.backends.cuda_triton.kernels.short_conv import short_conv
from tensorfold.backends.cuda_triton.kernels.sink_attention import sink_attention
from tensorfold.core.engine.optable import Candidate, Candidates

Call = Callable[..., Any]

# Products, norms, streams, experts: each row by itself.
BY_ROW: dict[str, Call] = {
    "linear": linear,
    "linear_parts": linear_parts,
    "linear_heads": linear_heads,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "hc_split": hc_split,
    "hc_mix": hc_mix,
    "hc_collapse": hc_collapse,
    "hc_join": hc_join,
    "short_conv": short_conv,
    "pool_keys": pool_keys,
    "rotate": rotate,
    "route": route,
    "route_softplus": route_softplus,
    "engram_gate": engram_gate,
    "experts": experts,
    "experts_weighted": experts_weighted,
}
# Recurrences, attention and the indexes: rows that read what other rows left.
BY_MEMORY: dict[str, Call] = {
    "kda_steps": kda_steps,
    "kda_blocks": kda_blocks,
    "pick_tokens": pick_tokens,
    "latent_attention": latent_attention,
    "pick_rows": pick_rows,
    "sink_attention": sink_attention,
}

# Drawing a token of a row.
BY_VOCABULARY: dict[str, Call] = {
    "rank_keys": rank_keys,
    "exp_sums": exp_sums,
    "running_sums": running_sums,
    "noise_bounds": noise_bounds,
    "noise_at": noise_at,
}


# Sums that ranks have parts of, before they are rounded.
UNROUNDED: dict[str, Call] = {
    call.__name__: partial(call, dtype=torch.float32)
    for call in (linear_parts, experts, experts_weighted)
}


# What sums follow of a weight's shape.
FOLLOWED: dict[str, Callable[[int, int], object]] = {"linear": parts_of}


def candidates() -> Candidates:
    """By op, in order of preference."""
    return {
        name: (
            Candidate(
                label="triton",
                call=call,
                unrounded=UNROUNDED.get(name),
                follows=FOLLOWED.get(name),
            ),
        )
        for name, call in (BY_ROW | BY_MEMORY | BY_VOCABULARY).items()
    }
