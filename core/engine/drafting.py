"""Drafts from a family's own drafter: chained, each guess feeding the next, or a block at once.

A draft is drawn as the engine will draw the token it guesses, with the noise of that seed and
position, so that a draft layer that agrees with the model agrees on sampled tokens too. Nothing
here can reach a token: guesses are verified by the model's own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tensorfold.core.engine import batch, sampling
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.sampling import Draw
from tensorfold.core.engine.state import Storage
from tensorfold.core.family_api import BlockDrafter, Drafter, Rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A stream that wants `want` drafts after its committed tokens.

    `row` is its last committed row of the forward, at `position` in `lane`; `draw` tells how the
    token at an absolute position is drawn.
    """

    row: int
    lane: int
    position: int
    want: int
    draw: Callable[[int], Draw]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafts:
    """Guesses in order, and the chance that each is right given those before it."""

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafting:
    """A draft layer over an engine's storage; `steps_V` is `noise.token_steps`."""

    drafter: Drafter
    storage: Storage
    steps_V: Tensor
    tile: int
    context: int

    def propose(
        self, rows: Rows, hidden_RD: Tensor, following_R: Sequence[int], asks: Sequence[Ask]
    ) -> list[Drafts]:
        """Take in a forward's rows, with the token that follows each, and guess on from the asks.

        Rows that were rejected or belong to a fault may be among them: what they leave lies beyond
        the committed rows and is written again.
        """
        padded = [*following_R, *[0] * (len(rows.ids_R) - len(following_R))]
        ids_R = torch.tensor(padded, device=hidden_RD.device)
        out_RD = self.drafter.forward(rows._replace(ids_R=ids_R), hidden_RD)
        tokens: list[list[int]] = [[] for _ in asks]
        chances: list[list[float]] = [[] for _ in asks]
        open_asks = [index for index, ask in enumerate(asks) if ask.want > 0]
        hidden_SD = out_RD[[asks[index].row for index in open_asks]]
        step = 1
        while open_asks:
            logits_SV = self.logits(hidden_SD)
            faults = sampling.faulty(logits_SV)
            good = [row for row, fault in enumerate(faults) if not fault]
            draws = [asks[open_asks[row]] for row in good]
            drawn = self.drawn(logits_SV[good], draws, step)
            for row, (token, chance) in zip(good, drawn, strict=True):
                tokens[open_asks[row]].append(token)
                chances[open_asks[row]].append(chance)
            goes_on = [row for row in good if asks[open_asks[row]].want > step]
            open_asks = [open_asks[row] for row in goes_on]
            if open_asks:
                runs = [
                    Run((tokens[index][-1],), asks[index].lane, asks[index].position + step)
                    for index in open_asks
                ]
                hidden_SD = self.chained(runs, hidden_SD[goes_on])
            step += 1
        return [
            Drafts(tokens=tuple(guessed), chances=tuple(chance))
            for guessed, chance in zip(tokens, chances, strict=True)
        ]

    def drawn(self, logits_SV: Tensor, asks: Sequence[Ask], step: int) -> list[tuple[int, float]]:
        """Each row's guess, and the draft layer's own probability of it."""
        if not asks:
            return []
        # The row at a position gives the token two on: the one after it is committed already.
        draws = [ask.draw(ask.position + 1 + step) for ask in asks]
        tokens = sampling.draw(logits_SV, draws, self.steps_V)
        chance_SV = torch.softmax(logits_SV, -1)
        return [(token, float(chance_SV[row, token])) for row, token in enumerate(tokens)]

    def logits(self, hidden_SD: Tensor) -> Tensor:
        padded_SD = self.to_tiles(hidden_SD)
        return self.drafter.logits(padded_SD)[: len(hidden_SD)]

    def chained(self, runs: Sequence[Run], hidden_SD: Tensor) -> Tensor:
        """One more row a stream: the layer's own output stands for the model's hidden row."""
        rows = batch.build(runs, self.storage, prompt=False, tile=self.tile, context=self.context)
        return self.drafter.forward(rows, self.to_tiles(hidden_SD))[: len(runs)]

    def to_tiles(self, hidden_SD: Tensor) -> Tensor:
        missing = batch.padded(len(hidden_SD), self.tile) - len(hidden_SD)
        return torch.cat([hidden_SD, hidden_SD.new_zeros(missing, hidden_SD.shape[1])])


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockDrafting:
    """A drafter of whole blocks over an engine's storage; fields as in `Drafting`."""

    drafter: BlockDrafter
    storage: Storage
    steps_V: Tensor
    tile: int
    context: int

    def propose(
        self, rows: Rows, hidden_RD: Tensor, following_R: Sequence[int], asks: Sequence[Ask]
    ) -> list[Drafts]:
        """As `Drafting.propose`; nothing where no block fits before the context's end."""
        self.drafter.follow(rows)
        found = [Drafts()] * len(asks)
        last = self.context - 1 - self.drafter.block
        open_asks = [n for n, ask in enumerate(asks) if ask.want > 0 and ask.position <= last]
        if not open_asks:
            return found
        runs = [
            Run(
                self.drafter.tokens(following_R[asks[index].row]),
                asks[index].lane,
                asks[index].position + 1,
            )
            for index in open_asks
        ]
        built = batch.build(runs, self.storage, prompt=False, tile=self.tile, context=self.context)
        sound = [self.drafter.block] * len(open_asks)

        def choose(step: int, logits_BV: Tensor) -> Tensor:
            faults = sampling.faulty(logits_BV)
            for place, fault in enumerate(faults):
                sound[place] = min(sound[place], step) if fault else sound[place]
            draws = [asks[index].draw(asks[index].position + 2 + step) for index in open_asks]
            faulty_B1 = torch.tensor(faults, device=logits_BV.device)[:, None]
            drawn = sampling.draw(logits_BV.masked_fill(faulty_B1, 0), draws, self.steps_V)
            return torch.tensor(drawn, device=logits_BV.device)

        proposal = self.drafter.propose(built, choose)
        tokens, chances = proposal.tokens_BK.tolist(), proposal.chance_BK.tolist()
        for place, index in enumerate(open_asks):
            count = min(asks[index].want, sound[place])
            found[index] = Drafts(
                tokens=tuple(tokens[place][:count]), chances=tuple(chances[place][:count])
            )
        return found
