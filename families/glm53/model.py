"""The text model bound to weights, ops and state (spec glm53, 2.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from tensorfold.core.family_api import Rows
from tensorfold.core.ops import Ops
from tensorfold.families.common.sharing import sharing
from tensorfold.families.glm53 import block
from tensorfold.families.glm53.attention import Pending
from tensorfold.families.glm53.config import Config
from tensorfold.families.glm53.plan import Plan
from tensorfold.families.glm53.state import DsaState, KdaState, layer_state
from tensorfold.families.glm53.weights import Moe, Weights

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


class Glm53:
    """A `family_api.Model`.

    By layer: `lists` holds the token lists of the last forward, `pending` what a window's KDA
    layers keep until `settle`.
    """

    captures = True

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
        self.state = [
            layer_state(state, index, linear) for index, linear in enumerate(config.linear)
        ]
        self.kinds = block.PLAIN
        if compile:
            self.kinds = block.Kinds(*(compile(function) for function in block.PLAIN))
        self.pending: dict[int, Pending] = {}
        self.lists: dict[int, Tensor] = {}

    def plan(self, rows: Rows) -> Plan:
        made = self.places(rows)
        if rows.split is None or made.dense_RK is not None:
            return made
        return made._replace(sharing=sharing(rows.split, rows.ids_R.device))

    def places(self, rows: Rows) -> Plan:
        for state in self.state:
            if isinstance(state, DsaState):
                tail, pool_slots = state.tail_LTE.shape[1], state.pools_SD.shape[0]
                return self.kinds.plan(self.config, rows, tail=tail, pool_slots=pool_slots)
        return self.kinds.plan(self.config, rows, tail=self.config.pool, pool_slots=1)

    def forward(self, rows: Rows) -> Tensor:
        """Final-normed hidden rows [R, D]; KDA state of windows is left pending."""
        config, ops, kinds = self.config, self.ops, self.kinds
        made = self.plan(rows)
        embedded_RD = self.weights.embed[rows.ids_R]
        x_RND = embedded_RD[:, None].expand(-1, config.streams, -1).contiguous()
        self.pending, self.lists = {}, {}
        for index, (w, state) in enumerate(zip(self.weights.layers, self.state, strict=True)):
            attention = (config, ops, w.attention_hyper, w.attention, state, made, rows, x_RND)
            if isinstance(state, DsaState):
                x_RND, self.lists[index] = kinds.dsa(*attention)
            elif rows.rows_BW is None:
                x_RND = kinds.kda_prompt(*attention)
            else:
                x_RND, self.pending[index] = kinds.kda_window(*attention)
            if isinstance(w.mlp, Moe):
                x_RND = kinds.moe(config, ops, w.mlp_hyper, w.mlp, made.real_R1, x_RND)
            else:
                x_RND = kinds.mlp(config, ops, w.mlp_hyper, w.mlp, x_RND)
        return kinds.leave(config, ops, self.weights.norm, x_RND)

    def prompt(self, rows: Rows) -> Tensor:
        assert rows.blocks_NT is not None
        return self.forward(rows)

    def window(self, rows: Rows) -> Tensor:
        assert rows.rows_BW is not None
        return self.forward(rows)

    def settle(self, rows: Rows, accepted_B: Tensor) -> None:
        for index, pending in self.pending.items():
            state = self.state[index]
            assert isinstance(state, KdaState)
            self.kinds.settle(self.config, self.ops, state, pending, rows, accepted_B)
        self.pending = {}

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return self.ops.join(self.ops.linear(hidden_RD, self.weights.head))
