"""The text model bound to weights, ops and state (spec dsv41, section 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from tensorfold.core.family_api import Rows
from tensorfold.core.ops import Ops
from tensorfold.core.ops.wide import wide
from tensorfold.families.dsv41 import block, engram, plan, rope
from tensorfold.families.dsv41.attention import Picked, Role, nothing_picked
from tensorfold.families.dsv41.block import Streams
from tensorfold.families.dsv41.config import Config
from tensorfold.families.dsv41.state import source_state
from tensorfold.families.dsv41.weights import Weights

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def roles(config: Config) -> list[Role]:
    found = []
    for layer in range(config.layers):
        indexes = layer in config.index_sources
        publishes = indexes and layer == config.candidate_source
        restricted = indexes and layer > config.candidate_source
        found.append(Role(publishes=publishes, restricted=restricted))
    return found


class Dsv41:
    """A `family_api.Model`.

    Of the last forward: `names_REC` are the Engram rows it looked up, `taps` what the drafter
    reads of it, [R, taps * D].
    """

    def __init__(
        self,
        config: Config,
        weights: Weights,
        ops: Ops,
        state: Mapping[str, Tensor],
        compile: Compile | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        self.state = state
        self.rates = rope.both(config, weights.embed.device)
        self.roles = roles(config)
        self.sources = [source_state(config, state, layer) for layer in range(config.layers)]
        self.kinds = block.PLAIN
        if compile:
            self.kinds = block.Kinds(*(compile(function) for function in block.PLAIN))
        # Rows of tables that stay with the host are fetched there in the middle of a forward.
        self.captures = all(
            layer.engram is None or layer.engram.table.value_SD.device == weights.embed.device
            for layer in weights.layers
        )
        self.names_REC: Tensor | None = None
        self.taps: Tensor | None = None

    def look_up(self, rows: Rows) -> Tensor | None:
        """The Engram rows' names; their stream's ids are kept for the rows to come."""
        hashing = self.weights.hashing
        if hashing is None:
            return None
        ids_RS = plan.history(rows, self.state, hashing.factor_ES.shape[1])
        return engram.names(self.config, hashing, ids_RS, rows.position_R)

    def forward(self, rows: Rows) -> Tensor:
        """Final-normed hidden rows [R, D]."""
        config, ops, kinds = self.config, self.ops, self.kinds
        made = plan.make(config, rows, self.rates, self.state)
        self.names_REC = self.look_up(rows)
        streams = block.begin(config, self.weights.embed[rows.ids_R])
        picked = nothing_picked(rows.ids_R.shape[0], rows.ids_R)
        taps = []
        for layer, w in enumerate(self.weights.layers):
            if w.engram is not None:
                streams = self.engram(rows, layer, streams)
            if config.drafting and layer in config.drafting.taps:
                taps.append(streams.x_RND)
            streams, picked = self.attention(made, layer, picked, streams)
            top = config.experts_per_token
            streams = kinds.moe(config, ops, w.moe_hyper, w.moe, top, made.real_R1, streams)
        self.taps = block.tapped(taps) if taps else None
        hidden_RD = ops.hc_collapse(streams.x_RND, streams.pre_RN)
        return ops.rms_norm(hidden_RD, self.weights.norm, config.norm_eps)

    def attention(
        self, made: plan.Plan, layer: int, picked: Picked, streams: Streams
    ) -> tuple[Streams, Picked]:
        w, ratio = self.weights.layers[layer], self.config.ratios[layer]
        return self.kinds.attention(
            self.config,
            self.ops,
            w.attention_hyper,
            w.attention,
            self.state[f"window.{layer}"],
            self.sources[layer],
            made.compressed if ratio else made.plain,
            made.memory.get(ratio),
            self.roles[layer],
            picked,
            streams,
        )

    def engram(self, rows: Rows, layer: int, streams: Streams) -> Streams:
        own, w = self.config.engram, self.weights.layers[layer].engram
        assert own is not None
        assert w is not None
        assert self.names_REC is not None
        name_RC = self.names_REC[:, own.layers.index(layer)]
        row_RE = w.table.fetch(name_RC, streams.x_RND)
        open_R = (rows.ids_R != self.config.image_id).to(streams.x_RND.dtype)
        return self.kinds.engram(self.config, self.ops, w, row_RE, open_R, streams)

    def prompt(self, rows: Rows) -> Tensor:
        assert rows.rows_BW is None
        return self.forward(rows)

    def window(self, rows: Rows) -> Tensor:
        assert rows.rows_BW is not None
        return self.forward(rows)

    def settle(self, rows: Rows, accepted_B: Tensor) -> None:
        """Nothing waits: what rejected rows wrote is written again before it is read."""

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return self.ops.join(self.ops.linear(wide(hidden_RD), self.weights.head))
