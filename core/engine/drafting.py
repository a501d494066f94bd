"""Drafts from a family's own drafter: chained, each guess feeding the next, or a block at once.

A draft is drawn as the engine will draw the token it guesses, with the noise of that seed and
position, so that a draft layer that agrees with the model agrees on sampled tokens too. Nothing
here can reach a token: guesses are verified by the model's own rows, so a draw that is unsure is
taken as it is. Part of a `Step`: no waits, no sizes that depend on values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorfold.core.engine import noise, sampling
from tensorfold.core.engine.packing import Depth, Shape
from tensorfold.core.engine.sampling import Cuts, Noisy
from tensorfold.core.engine.state import Storage
from tensorfold.core.family_api import BlockDrafter, Drafter, Rows
from tensorfold.core.ops import Ops


class Asks(NamedTuple):
    """Streams that want drafts after their committed tokens, the greediest first.

    row_A: a stream's last committed row of the forward, at position_A in lane_A; want_A is 0 where
    nothing may be drafted, and rows from end_A on are not claimed. `noisy` holds seeds'
    `noise.base_key` in place of row keys.
    """

    row_A: Tensor
    lane_A: Tensor
    position_A: Tensor
    want_A: Tensor
    end_A: Tensor
    noisy: Noisy | None
    cuts: Cuts | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where draft rows go: an engine's storage, row tile and context; `ops` as in `Step`."""

    storage: Storage
    ops: Ops
    tile: int
    context: int

    def draw(
        self, logits_AV: Tensor, asks: Asks, position_A: Tensor, depth: Depth, shape: Shape
    ) -> Tensor:
        """Tokens [A] of these absolute positions, for the first asks of a depth."""
        noisy = cuts = None
        if asks.noisy is not None and depth.noisy:
            row, base, temperature = (part[: depth.noisy] for part in asks.noisy)
            noisy = Noisy(row, noise.row_keys(base, position_A[row]), temperature)
        if asks.cuts is not None and depth.cut:
            cuts = Cuts(*(part[: depth.cut] for part in asks.cuts))
        return sampling.draw_rows(self.ops, logits_AV, noisy, cuts, shape.reach).token_S

    def rows(
        self, ids_AK: Tensor, lane_A: Tensor, position_A: Tensor, open_A: Tensor, width: int
    ) -> Rows:
        """Window rows of each ask from a position on; those not open are the spare lane's."""
        asks, count = ids_AK.shape
        storage, device = self.storage, ids_AK.device
        total = -(-asks * count // self.tile) * self.tile
        missing = total - asks * count
        place_K = torch.arange(count, device=device)
        lane_A = torch.where(open_A, lane_A, storage.spare_lane)
        start_A = torch.where(open_A, position_A, 0)
        lane_R = lane_A if count == 1 else lane_A.repeat_interleave(count)
        position_R = (start_A[:, None] + place_K).flatten()
        offset_R = place_K.repeat(asks)
        id_R = torch.where(open_A[:, None], ids_AK, 0).flatten()
        if missing:
            id_R, position_R, offset_R = (
                F.pad(part, (0, missing)) for part in (id_R, position_R, offset_R)
            )
            lane_R = F.pad(lane_R, (0, missing), value=storage.spare_lane)
        page = storage.spec.page
        first_A = torch.arange(asks, device=device) * count
        return Rows(
            ids_R=id_R,
            lane_R=lane_R,
            position_R=position_R,
            offset_R=offset_R,
            slot_R=storage.table[lane_R, position_R // page] * page + position_R % page,
            table_LP=storage.table,
            lane_B=lane_A,
            first_B=first_A,
            count_B=torch.full_like(first_A, count),
            width=width,
            rows_BW=first_A[:, None] + place_K,
        )

    def to_tiles(self, hidden_SD: Tensor) -> Tensor:
        missing = -hidden_SD.shape[0] % self.tile
        return F.pad(hidden_SD, (0, 0, 0, missing)) if missing else hidden_SD


def words(count_A: Tensor, tokens: list[Tensor], chances: list[Tensor]) -> list[Tensor]:
    """How many drafts each ask has, then a token and a chance for each ask and depth."""
    found = torch.cat(chances).double().view(torch.int64)
    return [count_A, *tokens, found]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafting:
    """A draft layer whose guesses are chained."""

    drafter: Drafter
    place: Place
    block: int = 0

    def propose(
        self, rows: Rows, hidden_RD: Tensor, following_R: Tensor, asks: Asks | None, shape: Shape
    ) -> list[Tensor]:
        """Take in a forward's rows, with the token that follows each, and guess on from the asks.

        Rows that were rejected or belong to a fault may be among them: what they leave lies beyond
        the committed rows and is written again.
        """
        out_RD = self.drafter.forward(rows._replace(ids_R=following_R), hidden_RD)
        if asks is None:
            return []
        hidden_AD = out_RD[asks.row_A]
        # All but the last draft have a row of their own, and unclaimed ones are everyone's.
        want_A = torch.minimum(asks.want_A, asks.end_A - asks.position_A)
        count_A = torch.zeros_like(want_A)
        tokens, chances = [], []
        for step, depth in enumerate(shape.depths, 1):
            num = depth.asks
            logits_AV = self.drafter.logits(self.place.to_tiles(hidden_AD))[:num]
            # A row that gives no number ends its stream's drafts.
            want_A = torch.where(sampling.sound(logits_AV), want_A[:num], 0)
            # The row at a position gives the token two on: the one after it is committed already.
            token_A = self.place.draw(
                logits_AV, asks, asks.position_A[:num] + 1 + step, depth, shape
            )
            chance_AV = torch.softmax(logits_AV, -1, dtype=torch.float32)
            tokens.append(token_A)
            chances.append(chance_AV.gather(1, token_A[:, None])[:, 0])
            gained_A = (want_A >= step).long()
            count_A = count_A + (gained_A if num == len(count_A) else pad(gained_A, count_A))
            if step < len(shape.depths):
                num = shape.depths[step].asks
                want_A = want_A[:num]
                built = self.place.rows(
                    token_A[:num, None],
                    asks.lane_A[:num],
                    asks.position_A[:num] + step,
                    want_A > step,
                    shape.chain_width,
                )
                # The layer's own output stands for the model's hidden row.
                hidden_AD = self.place.to_tiles(hidden_AD[:num])
                hidden_AD = self.drafter.forward(built, hidden_AD)[:num]
        return words(count_A, tokens, chances)


def pad(x_A: Tensor, like_A: Tensor) -> Tensor:
    return F.pad(x_A, (0, like_A.shape[0] - x_A.shape[0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockDrafting:
    """A drafter of whole blocks."""

    drafter: BlockDrafter
    place: Place

    @property
    def block(self) -> int:
        return self.drafter.block

    def propose(
        self, rows: Rows, hidden_RD: Tensor, following_R: Tensor, asks: Asks | None, shape: Shape
    ) -> list[Tensor]:
        """As `Drafting.propose`; nothing where no block fits before the context's end."""
        self.drafter.follow(rows)
        if asks is None:
            return []
        (depth,) = shape.depths
        last = self.place.context - 1 - self.block
        open_A = (asks.want_A > 0) & (asks.position_A <= last)
        built = self.place.rows(
            self.drafter.tokens(following_R[asks.row_A]),
            asks.lane_A,
            asks.position_A + 1,
            open_A,
            shape.chain_width,
        )
        sounds: list[Tensor] = []

        def choose(step: int, logits_AV: Tensor) -> Tensor:
            sound_A = sampling.sound(logits_AV)
            sounds.append(sound_A)
            logits_AV = torch.where(sound_A[:, None], logits_AV, 0)
            return self.place.draw(logits_AV, asks, asks.position_A + 2 + step, depth, shape)

        proposal = self.drafter.propose(built, choose)
        sound_AK = torch.stack(sounds, 1).long().cumprod(1)
        count_A = torch.minimum(asks.want_A, sound_AK.sum(1))
        count_A = torch.where(open_A, count_A, 0)
        return words(count_A, [proposal.tokens_BK.T.flatten()], [proposal.chance_BK.T.flatten()])
