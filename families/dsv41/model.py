"""The text model bound to weights, ops and state (spec dsv41, section 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tensorfold.core.family_api import Rows
from tensorfold.core.ops import Ops
from tensorfold.core.ops.wide import wide
from tensorfold.families.common.sharing import Sharing, sharing
from tensorfold.families.dsv41 import block, plan, rope, shortcut
from tensorfold.families.dsv41.attention import Picked, Role, nothing_picked
from tensorfold.families.dsv41.block import Streams
from tensorfold.families.dsv41.config import Config
from tensorfold.families.dsv41.read_ahead import ReadAhead
from tensorfold.families.dsv41.shortcut import Cut, Shortcut
from tensorfold.families.dsv41.state import IDS, SourceState, source_state
from tensorfold.families.dsv41.weights import Layer, Weights

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
    reads of it, [T, taps * D], and `tapped` the batch rows those are of, none for all of them.
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
        self.by_ratio = {
            config.ratios[source]: own
            for source in config.kv_sources
            if (own := self.sources[source]) is not None
        }
        self.kinds = block.PLAIN
        if compile:
            self.kinds = block.Kinds(*(compile(function) for function in block.PLAIN))
        # Rows of tables that stay with the host are fetched there in the middle of a forward.
        self.captures = all(
            layer.engram is None or layer.engram.table.value_SD.device == weights.embed.device
            for layer in weights.layers
        )
        tables = [layer.engram.table for layer in weights.layers if layer.engram is not None]
        hashing = weights.hashing
        self.ahead = ReadAhead(config, hashing, tables) if hashing is not None else None
        self.names_REC: Tensor | None = None
        self.taps: Tensor | None = None
        self.tapped: Tensor | None = None

    def look_up(self, rows: Rows) -> Tensor | None:
        """The Engram rows' names; their stream's ids are kept for the rows to come."""
        hashing = self.weights.hashing
        if hashing is None:
            return None
        return self.kinds.names(self.config, hashing, rows, self.state[IDS])

    def forward(self, rows: Rows) -> Tensor:
        """Final-normed hidden rows [R, D]; NaN where the shortcut left a row out."""
        config = self.config
        made = self.kinds.plan(config, rows, self.rates, self.state["window.0"], self.by_ratio)
        short = self.shortcut(rows)
        sharings = self.sharings(rows, short)
        self.names_REC = self.look_up(rows)
        streams = self.kinds.begin(config, self.weights.embed, rows.ids_R)
        picked = nothing_picked(rows.ids_R.shape[0], rows.ids_R)
        at_R: Tensor | None = None
        taps = []
        for layer, w in enumerate(self.weights.layers):
            cut = short.cuts.get(layer) if short else None
            if w.engram is not None:
                streams = self.engram(rows, layer, at_R, streams)
            if config.drafting and layer in config.drafting.taps:
                taps.append(streams.x_RND[short.entering[layer]] if short else streams.x_RND)
            if cut is not None and not cut.at_Q.shape[0]:
                self.leave(made, layer, cut, streams)
                break
            own = sharings.get(layer)
            streams, picked = self.attention(made, layer, cut, own, picked, streams)
            at_R = at_R if cut is None else cut.at_Q
            streams = self.moe(made, w, at_R, streams)
        self.taps = block.tapped(taps) if taps else None
        self.tapped = short.taps_T if short else None
        return self.ending(rows, short, streams)

    def shortcut(self, rows: Rows) -> Shortcut | None:
        if rows.reads is None:
            return None
        return shortcut.make(self.config, rows.reads, rows.ids_R.shape[0], rows.ids_R.device)

    def moe(self, made: plan.Plan, w: Layer, at_R: Tensor | None, streams: Streams) -> Streams:
        """`at_R` are the batch rows that came this far, none for all of them."""
        real_R1 = made.real_R1 if at_R is None else made.real_R1[at_R]
        top = self.config.experts_per_token
        return self.kinds.moe(self.config, self.ops, w.moe_hyper, w.moe, top, real_R1, streams)

    def sharings(self, rows: Rows, short: Shortcut | None) -> dict[int, Sharing]:
        """How ranks share each index, by its layer; nothing where they do not."""
        if rows.split is None:
            return {}
        goes = short.goes if short else {}
        total = rows.ids_R.shape[0]
        found = {}
        for layer in self.config.index_sources:
            own = plan.split_of(self.config, layer, rows.split, total, goes.get(layer))
            # Where no row goes on there is no index.
            if own.bounds[-1]:
                found[layer] = sharing(own, rows.ids_R.device)
        return found

    def attention(
        self,
        made: plan.Plan,
        layer: int,
        cut: Cut | None,
        own: Sharing | None,
        picked: Picked,
        streams: Streams,
    ) -> tuple[Streams, Picked]:
        w = self.weights.layers[layer]
        ring_LTC, source, window, memory = self.views(made, layer, cut)
        if own is not None:
            assert memory is not None
            memory = memory._replace(sharing=own)
        return self.kinds.attention(
            self.config,
            self.ops,
            w.attention_hyper,
            w.attention,
            ring_LTC,
            source,
            window,
            memory,
            self.roles[layer],
            cut,
            picked,
            streams,
        )

    def leave(self, made: plan.Plan, layer: int, cut: Cut, streams: Streams) -> None:
        w = self.weights.layers[layer]
        own = self.views(made, layer, cut)
        self.kinds.leaving(
            self.config, self.ops, w.attention_hyper, w.attention, *own, cut.keys_T, streams
        )

    def views(
        self, made: plan.Plan, layer: int, cut: Cut | None
    ) -> tuple[Tensor, SourceState | None, plan.Window, plan.Memory | None]:
        """A layer's window and compressed rows, and where this forward's rows stand in them."""
        ring_LTC, ratio = self.state[f"window.{layer}"], self.config.ratios[layer]
        window, memory = made.compressed if ratio else made.plain, made.memory.get(ratio)
        if cut is not None:
            window = plan.window_of(window, cut, ring_LTC.shape[0] * ring_LTC.shape[1])
            memory = None if memory is None else plan.memory_of(memory, cut)
        return ring_LTC, self.sources[layer], window, memory

    def engram(self, rows: Rows, layer: int, at_R: Tensor | None, streams: Streams) -> Streams:
        own, w = self.config.engram, self.weights.layers[layer].engram
        assert own is not None
        assert w is not None
        assert self.names_REC is not None
        name_RC, ids_R = self.names_REC[:, own.layers.index(layer)], rows.ids_R
        if at_R is not None:
            name_RC, ids_R = name_RC[at_R], ids_R[at_R]
        row_RE = w.table.fetch(name_RC, streams.x_RND)
        open_R = (ids_R != self.config.image_id).to(streams.x_RND.dtype)
        return self.kinds.engram(self.config, self.ops, w, row_RE, open_R, streams)

    def ending(self, rows: Rows, short: Shortcut | None, streams: Streams) -> Tensor:
        if short is None:
            return self.hidden(streams)
        total = rows.ids_R.shape[0]
        whole_RD = streams.x_RND.new_full((total, self.config.hidden_size), float("nan"))
        if not short.read_Q.shape[0]:
            return whole_RD
        return whole_RD.index_copy_(0, short.read_Q, self.hidden(streams.at(short.last_Q)))

    def hidden(self, streams: Streams) -> Tensor:
        hidden_RD = self.ops.hc_collapse(streams.x_RND, streams.pre_RN)
        return self.ops.rms_norm(hidden_RD, self.weights.norm, self.config.norm_eps)

    def aheads(self) -> Sequence[int]:
        """A `family_api.LeavesOut`'s."""
        return shortcut.aheads(self.config)

    def expect(self, tokens: Sequence[int], start: int, end: int) -> None:
        """A `family_api.ReadsAhead`: the tables' rows are looked at by threads of their own."""
        if self.ahead is not None:
            self.ahead.expect(tokens, start, end)

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
