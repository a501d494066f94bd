"""The MTP layer: predicts the token after next from a hidden row and the next token.

Plain residuals, one stream, its own latents and index (spec glm53, 2.9).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tensorfold.core.family_api import Rows
from tensorfold.core.ops import Ops
from tensorfold.families.glm53 import plan
from tensorfold.families.glm53.attention import dsa
from tensorfold.families.glm53.block import moe
from tensorfold.families.glm53.config import Config
from tensorfold.families.glm53.state import DsaState, layer_state
from tensorfold.families.glm53.weights import Weights


class Mtp:
    """The layer bound to weights, ops and its own state (`spec(..., drafts=True)`)."""

    def __init__(
        self, config: Config, weights: Weights, ops: Ops, state: Mapping[str, Tensor]
    ) -> None:
        assert weights.draft is not None
        own = layer_state(state, config.layers, False)
        assert isinstance(own, DsaState)
        self.config, self.ops, self.state = config, ops, own
        self.embed, self.head, self.weights = weights.embed, weights.head, weights.draft

    def forward(self, rows: Rows, hidden_RD: Tensor) -> Tensor:
        """Row i takes the main model's final-normed hidden row i; ids_R holds token i + 1.

        Returns rows [R, D] for `logits`, which also chain as the next hidden row. The embedding of
        position 0 is zero.
        """
        config, ops, w = self.config, self.ops, self.weights
        embedded_RD = self.embed[rows.ids_R] * (rows.position_R > 0)[:, None]
        joined = [
            ops.rms_norm(embedded_RD, w.embed_norm, config.norm_eps),
            ops.rms_norm(hidden_RD, w.hidden_norm, config.norm_eps),
        ]
        x_RD = ops.linear(torch.cat(joined, -1), w.eh_proj)
        # The draft layer's index is every rank's own: this plan shares nothing.
        made = plan.make(
            config,
            rows,
            tail=self.state.tail_LTE.shape[1],
            pool_slots=self.state.pools_SD.shape[0],
        )
        normed = ops.rms_norm(x_RD, w.input_norm, config.norm_eps)
        attended, _ = dsa(config, ops, w.attention, self.state, made, rows, normed)
        x_RD = x_RD + attended
        x_RD = x_RD + moe(
            config, ops, w.mlp, made.real_R1, ops.rms_norm(x_RD, w.post_norm, config.norm_eps)
        )
        return ops.rms_norm(x_RD, w.out_norm, config.norm_eps)

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return self.ops.join(self.ops.linear(hidden_RD, self.head))
