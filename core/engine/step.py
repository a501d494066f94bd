"""A round, or a prompt's forward, as one run of tensor operations: words in, words out.

Nothing here waits for a device, and nothing has a size that depends on a value: forward, faults,
draws, acceptance, the state after, log-probabilities and the next drafts are enqueued one after
another and read once, at the end. So a step of one `Shape` can be captured and replayed.

R rows, S rows drawn from, B streams, W window rows, A streams that want drafts, T rows told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.engine import sampling
from tensorfold.core.engine.drafting import Asks, BlockDrafting, Drafting
from tensorfold.core.engine.packing import Shape, Sizes, device_blocks, layout
from tensorfold.core.engine.sampling import Cuts, Noisy, Told
from tensorfold.core.engine.state import Storage
from tensorfold.core.family_api import Model, Rows
from tensorfold.core.ops import Ops

Blocks = Mapping[str, Tensor]

# Why a row gives no token.
NO_LOGITS, NO_TOKEN = 1, 2
# Prompt rows whose logits are held at once.
READ_ROWS = 32


class Given(NamedTuple):
    """What rows gave: token_S, fault_S (0 for none); unsure_S and needed_S as in `Drawn`."""

    token_S: Tensor
    fault_S: Tensor
    unsure_S: Tensor | None
    needed_S: Tensor | None


class Ended(NamedTuple):
    """A window's outcome: count_B rows count, next_B is the token after them; fault_B of them, and
    held_B where a draw that decides is unsure: such a stream's state is left as it was."""

    count_B: Tensor
    next_B: Tensor
    fault_B: Tensor
    held_B: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The steps of one model; tokens are drawn with `ops`."""

    model: Model
    storage: Storage
    sizes: Sizes
    ops: Ops
    vocab_size: int
    drafting: Drafting | BlockDrafting | None

    def round(self, words: Tensor, shape: Shape) -> Tensor:
        """Windows to their results, and each stream's state to its accepted rows."""
        f = device_blocks(words, layout(shape, self.sizes))
        sure = "noisy" not in f or shape.reach.candidates >= self.vocab_size
        rows = self.rows_of(f, shape)._replace(rows_BW=f["window"], sure=sure)
        hidden_RD = self.model.window(rows)
        logits_SV = self.model.logits(hidden_RD)[: shape.drawn]
        given = self.draw(logits_SV, f, shape)
        ended = accept(rows, f["stream"][4], given, shape)
        lane_B = rows.lane_B
        if ended.held_B is not None:
            lane_B = torch.where(ended.held_B, self.storage.spare_lane, lane_B)
        self.model.settle(rows._replace(lane_B=lane_B), ended.count_B)
        parts = [ended.count_B, ended.next_B, ended.fault_B]
        if ended.held_B is not None:
            parts.append(ended.held_B.long())
        if given.needed_S is not None:
            parts.append(given.needed_S)
        if shape.told or shape.asks.asks:
            following_R = following(rows, ended)
            if shape.told:
                parts += told_words(self.tell(logits_SV, following_R[: shape.drawn], f, shape))
            if shape.asks.asks:
                parts += self.drafts(rows, hidden_RD, following_R, ended, f, shape)
        return torch.cat(parts)

    def prompt(self, words: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
        """The hidden rows of pieces, and the results after them (`finish`)."""
        f = device_blocks(words, layout(shape, self.sizes))
        hidden_RD = self.model.prompt(self.prompt_rows(f, shape))
        return hidden_RD, self.finish(words, shape, hidden_RD)

    def finish(self, words: Tensor, shape: Shape, hidden_RD: Tensor) -> Tensor:
        """Results of pieces whose hidden rows are there; may be run again of the same rows."""
        f = device_blocks(words, layout(shape, self.sizes))
        rows = self.prompt_rows(f, shape)
        last_S = f["last"]
        # A draw that is padding is of one row past the end.
        logits_SV = self.model.logits(hidden_RD.index_select(0, last_S.clamp(max=shape.rows - 1)))[
            : shape.drawn
        ]
        given = self.draw(logits_SV, f, shape)
        ended = Ended(rows.count_B, given.token_S, given.fault_S, given.unsure_S)
        parts = [given.token_S, given.fault_S]
        if given.unsure_S is not None:
            parts.append(given.unsure_S.long())
        if given.needed_S is not None:
            parts.append(given.needed_S)
        if shape.told:
            parts += told_words(self.tell(logits_SV, given.token_S, f, shape))
        if self.drafting is not None:
            after_S = torch.where(f["given"] < 0, given.token_S, f["given"])
            following_R = f["following"]
            after_R = torch.cat([following_R, following_R.new_zeros(1)])
            following_R = after_R.index_copy(0, last_S[: shape.drawn], after_S)[:-1]
            parts += self.drafts(rows, hidden_RD, following_R, ended, f, shape)
        if shape.read:
            parts += self.read(hidden_RD, f["read"], shape.read_top)
        return torch.cat(parts)

    def rows_of(self, f: Blocks, shape: Shape) -> Rows:
        id_R, lane_R, position_R, offset_R, slot_R = f["row"].unbind()
        lane_B, first_B, count_B = f["stream"][:3].unbind()
        return Rows(
            ids_R=id_R,
            lane_R=lane_R,
            position_R=position_R,
            offset_R=offset_R,
            slot_R=slot_R,
            table_LP=self.storage.table,
            lane_B=lane_B,
            first_B=first_B,
            count_B=count_B,
            width=shape.width,
        )

    def prompt_rows(self, f: Blocks, shape: Shape) -> Rows:
        rows = self.rows_of(f, shape)._replace(reads=shape.reads, split=shape.split)
        if not shape.blocks:
            return rows
        return rows._replace(blocks_NT=f["block"], block_lane_N=f["block_lane"])

    def draw(self, logits_SV: Tensor, f: Blocks, shape: Shape) -> Given:
        sound_S = sampling.sound(logits_SV)
        fault_S = torch.where(sound_S, 0, NO_LOGITS)
        if shape.masked:
            mask_MB = f["mask"].view(torch.uint8)[:, : self.sizes.mask_bytes]
            logits_SV = sampling.allow(logits_SV, f["masked"], mask_MB)
            closed_S = sound_S & ~sampling.sound(logits_SV)
            fault_S = torch.where(closed_S, NO_TOKEN, fault_S)
        found = sampling.draw_rows(
            self.ops, logits_SV, noisy_of(f, "noisy"), cuts_of(f, "cut"), shape.reach
        )
        unsure_S = found.unsure_S
        if unsure_S is not None:
            unsure_S = unsure_S & (fault_S == 0)
        return Given(found.token_S, fault_S, unsure_S, found.needed_S)

    def tell(self, logits_SV: Tensor, token_S: Tensor, f: Blocks, shape: Shape) -> Told:
        if shape.told == shape.drawn:
            return sampling.tell(self.ops, logits_SV, token_S, shape.top)
        row_T = f["told"]
        return sampling.tell(self.ops, logits_SV[row_T], token_S[row_T], shape.top)

    def drafts(
        self,
        rows: Rows,
        hidden_RD: Tensor,
        following_R: Tensor,
        ended: Ended,
        f: Blocks,
        shape: Shape,
    ) -> list[Tensor]:
        """The drafter takes in every row, so that it has seen a stream's past when it is asked.

        Rejected rows have some token behind them: nothing that is read comes from there.
        """
        assert self.drafting is not None
        asks: Asks | None = None
        if shape.asks.asks:
            stream_A, want_A, end_A = f["ask"].unbind()
            open_B = ended.fault_B == 0
            if ended.held_B is not None:
                open_B = open_B & ~ended.held_B
            asks = Asks(
                row_A=(rows.first_B + ended.count_B - 1)[stream_A],
                lane_A=rows.lane_B[stream_A],
                position_A=(f["stream"][3] + ended.count_B - 1)[stream_A],
                want_A=torch.where(open_B[stream_A], want_A, 0),
                end_A=end_A,
                noisy=noisy_of(f, "ask_noisy"),
                cuts=cuts_of(f, "ask_cut"),
            )
        return self.drafting.propose(rows, hidden_RD, following_R, asks, shape)

    def read(self, hidden_RD: Tensor, read_2T: Tensor, top: int) -> list[Tensor]:
        """Log-probabilities of prompt rows, some at a time: a vocabulary for each is large."""
        row_T, token_T = read_2T.unbind()
        found = []
        for row, token in zip(row_T.split(READ_ROWS), token_T.split(READ_ROWS), strict=True):
            missing = -row.shape[0] % self.sizes.tile
            whole = torch.cat([row, row.new_zeros(missing)]) if missing else row
            logits_SV = self.model.logits(hidden_RD.index_select(0, whole))[: row.shape[0]]
            found.append(sampling.tell(self.ops, logits_SV, token, top))
        return told_words(Told(*(torch.cat(part) for part in zip(*found, strict=True))))


def noisy_of(f: Blocks, name: str) -> Noisy | None:
    if name not in f:
        return None
    row, key, temperature = f[name].unbind()
    return Noisy(row, key, temperature.view(torch.float64))


def cuts_of(f: Blocks, name: str) -> Cuts | None:
    if name not in f:
        return None
    place, top_k, top_p, min_p = f[name].unbind()
    return Cuts(place, top_k, top_p.view(torch.float64), min_p.view(torch.float64))


def accept(rows: Rows, forced_B: Tensor, given: Given, shape: Shape) -> Ended:
    """Rows count while forced, or equal to what was drawn before them.

    A fault or an unsure draw concerns a stream if it lies in the rows that count: the last of them
    gives the next token. A guess whose own row is at fault does not count: as without guesses, its
    token is committed first, where the reply may end.
    """
    assert rows.rows_BW is not None
    if shape.window == 1:
        # One row a stream, in order: padding may follow in either.
        first_B = rows.first_B
        held_B = None if given.unsure_S is None else given.unsure_S[first_B]
        return Ended(
            torch.ones_like(first_B), given.token_S[first_B], given.fault_S[first_B], held_B
        )
    row_BW = rows.rows_BW.clamp(max=shape.drawn - 1)
    token_BW, id_BW = given.token_S[row_BW], rows.ids_R[row_BW]
    place_W = torch.arange(shape.window, device=row_BW.device)
    fault_BW = given.fault_S[row_BW]
    right_BW = (token_BW[:, :-1] == id_BW[:, 1:]) & (fault_BW[:, 1:] == 0)
    right_BW = right_BW | (place_W <= forced_B[:, None])[:, 1:]
    right_BW = right_BW & (place_W < rows.count_B[:, None])[:, 1:]
    count_B = 1 + right_BW.long().cumprod(1).sum(1)
    next_B = token_BW.gather(1, count_B[:, None] - 1)[:, 0]
    inside_BW = place_W < count_B[:, None]
    fault_B = torch.where(inside_BW, fault_BW, 0).amax(1)
    held_B = None
    if given.unsure_S is not None:
        held_B = (given.unsure_S[row_BW] & inside_BW).any(1)
    return Ended(count_B, next_B, fault_B, held_B)


def following(rows: Rows, ended: Ended) -> Tensor:
    """The token after each row [R]; 0 after rows that do not count."""
    assert rows.rows_BW is not None
    row_BW = rows.rows_BW
    place_W = torch.arange(row_BW.shape[1], device=row_BW.device)
    next_BW = ended.next_B[:, None].expand_as(row_BW)
    if row_BW.shape[1] > 1:
        id_R = rows.ids_R
        after_BW = torch.cat([id_R, id_R.new_zeros(2)])[row_BW + 1]
        last_B1 = ended.count_B[:, None] - 1
        next_BW = torch.where(place_W < last_B1, after_BW, next_BW)
        next_BW = torch.where(place_W <= last_B1, next_BW, 0)
    # One row past the end takes what the missing rows of short windows gave.
    after_R = next_BW.new_zeros(rows.ids_R.shape[0] + 1)
    return after_R.index_put((row_BW,), next_BW)[:-1]


def told_words(told: Told) -> list[Tensor]:
    """Log-probabilities, then alternatives' ids and log-probabilities, as words."""
    return [
        as_words(told.logprob_T),
        told.id_TN.flatten(),
        as_words(told.top_TN.flatten()),
    ]


def as_words(x: Tensor) -> Tensor:
    """Numbers as the bits of float64, which holds every float32 exactly."""
    return x.double().view(torch.int64)
