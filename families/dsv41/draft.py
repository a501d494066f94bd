"""DSpark: drafts a block at once, then lets each token lean on the one before it (spec dsv41, 2.9).

The stages keep a window of rows made from what the main model's tapped layers were given; a
block's own rows are never kept. B streams, K rows of a block, E joined taps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.family_api import Proposal, Rows
from tensorfold.core.ops import Ops
from tensorfold.core.ops.hc_split import sigmoid
from tensorfold.core.ops.wide import wide
from tensorfold.families.common.padding import real_rows
from tensorfold.families.common.rings import ring_slots
from tensorfold.families.dsv41 import block, rope
from tensorfold.families.dsv41.attention import inputs, narrowed, output
from tensorfold.families.dsv41.block import Streams
from tensorfold.families.dsv41.config import Config
from tensorfold.families.dsv41.model import Dsv41
from tensorfold.families.dsv41.plan import Window
from tensorfold.families.dsv41.weights import Attention, Layer, Weights

# The tokens [B] that a step of the block draws from its logits [B, V].
Choose = Callable[[int, Tensor], Tensor]


class Block(NamedTuple):
    """Drafts tokens_BK, the logits they were drawn from, and the raw confidence in each."""

    tokens_BK: Tensor
    logits_BKV: Tensor
    confidence_BK: Tensor


def highest(step: int, logits_BV: Tensor) -> Tensor:
    """The highest logit, ties to the lowest id."""
    top_B1 = logits_BV.amax(-1, keepdim=True)
    ids_V = torch.arange(logits_BV.shape[-1], device=logits_BV.device)
    return torch.where(logits_BV == top_B1, ids_V, logits_BV.shape[-1]).amin(-1)


def block_window(config: Config, rows: Rows, ring: int, turn: rope.Turn) -> Window:
    """Every row of a block sees the window before the block, and all of the block."""
    assert config.drafting is not None
    lanes = rows.table_LP.shape[0]
    row_R = torch.arange(rows.ids_R.shape[0], device=rows.ids_R.device)
    start_R1 = (rows.position_R - rows.offset_R)[:, None]
    back_W = torch.arange(config.window, 0, -1, device=rows.ids_R.device)
    before_RW = rows.lane_R[:, None] * ring + (start_R1 - back_W) % ring
    before_RW = torch.where(start_R1 >= back_W, before_RW, -1)
    place_K = torch.arange(config.drafting.block, device=rows.ids_R.device)
    own_RK = lanes * ring + (row_R - rows.offset_R)[:, None] + place_K
    # A padding row is alone: it belongs to no block.
    padding_R1 = (rows.lane_R == lanes - 1)[:, None]
    own_RK = torch.where(padding_R1, lanes * ring + row_R[:, None], own_RK)
    return Window(torch.cat([before_RW, own_RK], 1), row_R, turn)


class Dspark:
    """The drafter bound to weights, ops and its own state (`spec(..., drafts=True)`)."""

    def __init__(
        self,
        config: Config,
        weights: Weights,
        ops: Ops,
        state: Mapping[str, Tensor],
        model: Dsv41 | None = None,
    ) -> None:
        """`model` is what `follow` looks at."""
        assert config.drafting is not None
        assert weights.drafter is not None
        self.model, self.block = model, config.drafting.block
        self.config, self.ops = config, ops
        self.embed, self.head, self.weights = weights.embed, weights.head, weights.drafter
        self.rings = [state[f"draft.{stage}"] for stage in range(config.drafting.stages)]
        self.rate_P = rope.both(config, self.embed.device).plain_P

    def follow(self, rows: Rows) -> None:
        """Take in the rows of the model's last forward."""
        assert self.model is not None
        tapped_R = self.model.tapped
        if tapped_R is None or tapped_R.shape[0]:
            assert self.model.taps is not None
            self.take_in(rows, self.model.taps, tapped_R)

    def take_in(self, rows: Rows, taps_RE: Tensor, tapped_R: Tensor | None = None) -> None:
        """Keep what a forward of the main model gave for its rows (`Dsv41.taps`), or for those
        that tapped_R names.

        Rejected rows may be among them: their place is written again before it is read.
        """
        config, ops, w = self.config, self.ops, self.weights
        main_RD = ops.linear(narrowed(config, taps_RE), w.main_proj)
        main_RD = narrowed(config, ops.rms_norm(main_RD, w.main_norm, config.norm_eps))
        turn = rope.turn_at(rows.position_R, self.rate_P)
        turn = turn if tapped_R is None else turn.at(tapped_R)
        for stage, ring_LTC in zip(w.stages, self.rings, strict=True):
            own = stage.attention
            kv_RC = ops.linear(main_RD, own.in_proj[config.q_rank :])
            kv_RC = rope.rotate(ops, ops.rms_norm(kv_RC, own.kv_norm, config.norm_eps), turn)
            slot_R = ring_slots(rows, ring_LTC.shape[1])
            slot_R = slot_R if tapped_R is None else slot_R[tapped_R]
            ring_LTC.flatten(0, 1).index_copy_(0, slot_R, narrowed(config, kv_RC))

    def tokens(self, pending_B: Tensor) -> Tensor:
        """The ids [B, K] of blocks whose streams' next rows are pending_B."""
        own = self.config.drafting
        assert own is not None
        noise_BK = pending_B.new_full((len(pending_B), self.block - 1), own.noise_id)
        return torch.cat([pending_B[:, None], noise_BK], 1)

    def attend(self, w: Attention, ring_LTC: Tensor, window: Window, x_RD: Tensor) -> Tensor:
        config, ring_SC = self.config, ring_LTC.flatten(0, 1)
        given = inputs(config, self.ops, w, window, x_RD)
        o_RHC = self.ops.sink_attention(
            given.q_QHC,
            ring_SC,
            given.kv_TC,
            window.source_RW,
            ring_SC,
            window.source_RW[:, :0],
            w.sink_H,
            config.head_size**-0.5,
        )
        return output(config, self.ops, w, window, o_RHC)

    def stage(
        self, w: Layer, ring_LTC: Tensor, window: Window, real_R1: Tensor, s: Streams
    ) -> Streams:
        config, ops = self.config, self.ops
        assert config.drafting is not None
        x_RD = block.entering(config, ops, w.attention_hyper, s)
        y_RD = self.attend(w.attention, ring_LTC, window, x_RD)
        s = block.put_back(ops, y_RD, s, block.mixed(config, ops, w.attention_hyper, s))
        top = config.drafting.experts_per_token
        return block.moe_sublayer(config, ops, w.moe_hyper, w.moe, top, real_R1, s)

    def hidden(self, rows: Rows) -> Tensor:
        """A block's rows after the stages, before the norm, [R, D]."""
        turn = rope.turn_at(rows.position_R, self.rate_P)
        window = block_window(self.config, rows, self.rings[0].shape[1], turn)
        s = block.begin(self.config, self.embed, rows.ids_R)
        for w, ring_LTC in zip(self.weights.stages, self.rings, strict=True):
            s = self.stage(w, ring_LTC, window, real_rows(rows), s)
        return self.ops.hc_collapse(s.x_RND, s.pre_RN)

    def propose(self, rows: Rows, choose: Choose = highest) -> Proposal:
        """A `family_api.BlockDrafter`'s: `draft`, with the confidence as a chance."""
        found = self.draft(rows, choose)
        return Proposal(found.tokens_BK, sigmoid(found.confidence_BK))

    def draft(self, rows: Rows, choose: Choose = highest) -> Block:
        """Drafts after the pending tokens of `rows`: window rows, a whole block a stream, of
        `tokens` from the first position on whose row the main model has not run."""
        assert rows.rows_BW is not None
        ops, w = self.ops, self.weights
        hidden_RD = self.hidden(rows)
        normed_RD = ops.rms_norm(hidden_RD, w.norm, self.config.norm_eps)
        base_RV = ops.join(ops.linear(wide(normed_RD), self.head))
        before_B = rows.ids_R[rows.rows_BW[:, 0]]
        tokens, logits, confidence = [], [], []
        for step in range(rows.rows_BW.shape[1]):
            row_B = rows.rows_BW[:, step]
            word_BM = w.markov_embed[before_B]
            logits_BV = base_RV[row_B] + ops.linear(wide(word_BM), w.markov_head)
            before_B = choose(step, logits_BV)
            joined = torch.cat([hidden_RD[row_B], word_BM], -1)
            tokens.append(before_B)
            logits.append(logits_BV)
            confidence.append(ops.linear(joined, w.confidence)[:, 0])
        return Block(torch.stack(tokens, 1), torch.stack(logits, 1), torch.stack(confidence, 1))
