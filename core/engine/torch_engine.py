"""The engine: records in, a family's model on a backend's ops, tokens out.

Work happens in `land()`, so that what is delivered between launch and landing has left before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from tensorfold.core.engine import batch, noise, sampling
from tensorfold.core.engine.drafting import Ask, BlockDrafting, Drafting, Drafts
from tensorfold.core.engine.sampling import Draw
from tensorfold.core.engine.state import Kept, Seat, Storage
from tensorfold.core.engine_api import (
    Filled,
    Flight,
    Info,
    Landed,
    Memory,
    Opened,
    Opening,
    Piece,
    Saved,
    TokenLogprob,
    Window,
)
from tensorfold.core.errors import Refused
from tensorfold.core.family_api import BlockDrafter, Drafter, Model, Rows

Result = TypeVar("Result")

FAULT = "the model gave no finite logits"


@dataclass(kw_only=True, slots=True)
class Stream:
    """An open stream: its opening, what it has claimed, and how many of its rows count."""

    opening: Opening
    seat: Seat
    rows: int

    def draw(self, position: int, mask: bytes | None = None) -> Draw:
        opening = self.opening
        return Draw(sampling=opening.sampling, seed=opening.seed, position=position, mask=mask)


class OpenFlight(Generic[Result]):
    """A flight whose work is done when it lands."""

    def __init__(self, engine: TorchEngine, work: Callable[[], list[Result]]) -> None:
        self.engine = engine
        self.work = work

    def land(self) -> Sequence[Result]:
        assert self.engine.flying is self, "this flight has landed"
        self.engine.flying = None
        with torch.inference_mode():
            return self.work()


class TorchEngine:
    """An `engine_api.Engine` over one model; `tile` is the backend's row tile."""

    def __init__(
        self,
        *,
        info: Info,
        model: Model,
        storage: Storage,
        tile: int,
        drafter: Drafter | BlockDrafter | None = None,
    ) -> None:
        self.info = info
        self.model = model
        self.storage = storage
        self.tile = tile
        self.streams: dict[int, Stream] = {}
        self.flying: object | None = None
        device = next(iter(storage.buffers.values())).device
        self.steps_V = noise.token_steps(info.vocab_size, device)
        self.drafting: Drafting | BlockDrafting | None = None
        if isinstance(drafter, BlockDrafter):
            self.drafting = BlockDrafting(
                drafter=drafter,
                storage=storage,
                steps_V=self.steps_V,
                tile=tile,
                context=info.context,
            )
        elif drafter is not None:
            self.drafting = Drafting(
                drafter=drafter,
                storage=storage,
                steps_V=self.steps_V,
                tile=tile,
                context=info.context,
            )

    @torch.inference_mode()
    def open(self, opening: Opening) -> Opened:
        assert opening.stream not in self.streams, opening.stream
        assert opening.prompt, opening.stream
        total = len(opening.prompt) + opening.most
        if total > self.info.context:
            raise Refused(
                f"{len(opening.prompt)} prompt tokens and {opening.most} of reply are more than "
                f"the context of {self.info.context}"
            )
        kept, lost = self.kept_for(opening)
        seat = self.storage.claim(total, kept.pages if kept else ())
        if kept:
            self.storage.restore(seat, kept)
        rows = len(kept.prompt) if kept else 0
        self.streams[opening.stream] = Stream(opening=opening, seat=seat, rows=rows)
        return Opened(stream=opening.stream, cached=rows, lost=lost)

    def kept_for(self, opening: Opening) -> tuple[Kept | None, str | None]:
        """The state that an opening resumes, or why it cannot be restored."""
        if opening.resume is None:
            return None, None
        kept = self.storage.kept.get(opening.resume.id)
        if kept is None:
            return None, f"kept state {opening.resume.id} is not here"
        rows = len(kept.prompt)
        if rows >= len(opening.prompt) or opening.prompt[:rows] != kept.prompt:
            return None, f"kept state {opening.resume.id} is not of this prompt's beginning"
        return kept, None

    def fill(self, pieces: Sequence[Piece]) -> Flight[Filled]:
        assert self.flying is None, "one flight is open at a time"
        rows = sum(piece.end - piece.start for piece in pieces)
        most = self.info.chunk_rows if len(pieces) == 1 else self.info.pack_rows
        assert 0 < rows <= most, (rows, most)
        for piece in pieces:
            stream = self.streams[piece.stream]
            end = len(stream.opening.prompt)
            assert piece.start == stream.rows < piece.end <= end, (piece, stream.rows, end)
            assert piece.end == end or piece.end % self.info.grid == 0, (piece, end)
        flight = OpenFlight(self, lambda: self.run_fill(pieces))
        self.flying = flight
        return flight

    def run_fill(self, pieces: Sequence[Piece]) -> list[Filled]:
        runs = []
        for piece in pieces:
            stream = self.streams[piece.stream]
            part = stream.opening.prompt[piece.start : piece.end]
            runs.append(batch.Run(part, stream.seat.lane, piece.start))
        rows = batch.build(
            runs, self.storage, prompt=True, tile=self.tile, context=self.info.context
        )
        hidden_RD = self.model.prompt(rows)
        lasts = [first + len(run.tokens) - 1 for first, run in zip(firsts(runs), runs, strict=True)]
        logits_SV = self.logits(hidden_RD, lasts)
        faults = sampling.faulty(logits_SV)
        ending = [row for row, piece in enumerate(pieces) if self.ends(piece) and not faults[row]]
        draws = [
            self.streams[pieces[row].stream].draw(pieces[row].end, pieces[row].mask)
            for row in ending
        ]
        tokens = sampling.draw(logits_SV[ending], draws, self.steps_V) if ending else []
        drawn = dict(zip(ending, tokens, strict=True))
        drafts = self.drafts_after(rows, hidden_RD, pieces, lasts, drawn)
        results = []
        for row, (piece, first) in enumerate(zip(pieces, firsts(runs), strict=True)):
            if faults[row]:
                results.append(Filled(stream=piece.stream, fault=FAULT))
                continue
            prompt_rows = hidden_RD[first : first + piece.end - piece.start]
            filled = self.filled(piece, prompt_rows, logits_SV[row], drawn.get(row))
            guessed = drafts[row]
            results.append(replace(filled, drafts=guessed.tokens, chances=guessed.chances))
        return results

    def drafts_after(
        self,
        rows: Rows,
        hidden_RD: Tensor,
        pieces: Sequence[Piece],
        lasts: Sequence[int],
        drawn: Mapping[int, int],
    ) -> list[Drafts]:
        """Drafts after each piece's first token, if it has one and any are wanted.

        The draft layer takes in every prompt row, so that it has seen the prompt when asked.
        """
        if self.drafting is None:
            return [Drafts()] * len(pieces)
        following: list[int] = []
        asks = []
        for row, (piece, last) in enumerate(zip(pieces, lasts, strict=True)):
            stream = self.streams[piece.stream]
            following += stream.opening.prompt[piece.start + 1 : piece.end + 1]
            if self.ends(piece):
                following.append(drawn.get(row, 0))
            want = piece.want if row in drawn else 0
            asks.append(self.ask(stream, row=last, position=piece.end - 1, want=want))
        return self.drafting.propose(rows, hidden_RD, following, asks)

    def ask(self, stream: Stream, *, row: int, position: int, want: int) -> Ask:
        """`want` is cut to what the engine drafts at most."""
        most = min(want, self.info.drafts)
        return Ask(row=row, lane=stream.seat.lane, position=position, want=most, draw=stream.draw)

    def ends(self, piece: Piece) -> bool:
        return piece.end == len(self.streams[piece.stream].opening.prompt)

    def filled(
        self, piece: Piece, hidden_RD: Tensor, logits_V: Tensor, token: int | None
    ) -> Filled:
        stream = self.streams[piece.stream]
        opening = stream.opening
        stream.rows = piece.end
        saved = None
        if piece.end in opening.marks:
            number, kept = self.storage.keep(stream.seat, opening.prompt[: piece.end])
            saved = Saved(id=number, rows=piece.end, bytes=kept.bytes)
        logprob = None
        if token is not None and opening.logprobs is not None:
            logprob = sampling.logprobs(logits_V, token, opening.logprobs)
        return Filled(
            stream=piece.stream,
            token=token,
            logprob=logprob,
            saved=saved,
            rows=self.prompt_logprobs(piece, hidden_RD) if piece.logprobs is not None else (),
        )

    def prompt_logprobs(self, piece: Piece, hidden_RD: Tensor) -> tuple[TokenLogprob, ...]:
        """What each row of a piece gives to the prompt token after it."""
        prompt = self.streams[piece.stream].opening.prompt
        following = prompt[piece.start + 1 : piece.end + 1]
        assert piece.logprobs is not None
        found = []
        for start in range(0, len(following), self.tile):
            rows = list(range(start, min(start + self.tile, len(following))))
            logits_SV = self.logits(hidden_RD, rows)
            for row, logits_V in zip(rows, logits_SV, strict=True):
                found.append(sampling.logprobs(logits_V, following[row], piece.logprobs))
        return tuple(found)

    def logits(self, hidden_RD: Tensor, rows: Sequence[int]) -> Tensor:
        """Logits of chosen rows, computed on whole tiles."""
        missing = -len(rows) % self.tile
        index = torch.tensor([*rows, *[0] * missing], device=hidden_RD.device)
        return self.model.logits(hidden_RD.index_select(0, index))[: len(rows)]

    def round(self, windows: Sequence[Window]) -> Flight[Landed]:
        assert self.flying is None, "one flight is open at a time"
        rows = sum(len(window.tokens) for window in windows)
        assert 0 < rows <= self.info.round_rows, (rows, self.info.round_rows)
        for window in windows:
            stream = self.streams[window.stream]
            assert 0 < len(window.tokens) <= self.info.window_rows, window
            assert window.forced < len(window.tokens), window
            assert stream.rows >= len(stream.opening.prompt), (window, stream.rows)
            # Storage is claimed for the prompt and the reply; the last token needs no row.
            claimed = len(stream.opening.prompt) + stream.opening.most
            assert stream.rows + len(window.tokens) <= claimed, (window, stream.rows, claimed)
        flight = OpenFlight(self, lambda: self.run_round(windows))
        self.flying = flight
        return flight

    def run_round(self, windows: Sequence[Window]) -> list[Landed]:
        runs = []
        for window in windows:
            stream = self.streams[window.stream]
            runs.append(batch.Run(window.tokens, stream.seat.lane, stream.rows))
        rows = batch.build(
            runs, self.storage, prompt=False, tile=self.tile, context=self.info.context
        )
        hidden_RD = self.model.window(rows)
        real = sum(len(window.tokens) for window in windows)
        logits_SV = self.model.logits(hidden_RD)[:real]
        faults = sampling.faulty(logits_SV)
        tokens = self.draw_windows(windows, logits_SV, faults)
        results, accepted = [], []
        for first, window in zip(firsts(runs), windows, strict=True):
            here = slice(first, first + len(window.tokens))
            landed = self.landed(window, logits_SV[here], tokens[here], faults[here])
            results.append(landed)
            accepted.append(max(1, len(landed.tokens)))
        self.model.settle(rows, torch.tensor(accepted, device=hidden_RD.device))
        if self.drafting is None or not any(window.want for window in windows):
            return results
        return self.with_drafts(self.drafting, rows, hidden_RD, runs, windows, results)

    def with_drafts(
        self,
        drafting: Drafting | BlockDrafting,
        rows: Rows,
        hidden_RD: Tensor,
        runs: Sequence[batch.Run],
        windows: Sequence[Window],
        results: Sequence[Landed],
    ) -> list[Landed]:
        """The landed windows with the drafts they want. Rejected rows are taken in with some token
        behind them: nothing that is read comes from there."""
        following: list[int] = []
        asks = []
        for first, window, landed in zip(firsts(runs), windows, results, strict=True):
            count = len(landed.tokens)
            following += [*landed.tokens, *[0] * (len(window.tokens) - count)]
            stream = self.streams[window.stream]
            last = first + max(count, 1) - 1
            want = window.want if count else 0
            asks.append(self.ask(stream, row=last, position=stream.rows - 1, want=want))
        drafts = drafting.propose(rows, hidden_RD, following, asks)
        return [
            replace(landed, drafts=guessed.tokens, chances=guessed.chances)
            for landed, guessed in zip(results, drafts, strict=True)
        ]

    def draw_windows(
        self, windows: Sequence[Window], logits_SV: Tensor, faults: Sequence[bool]
    ) -> list[int]:
        """The token that each row draws; -1 for rows that give none."""
        draws = []
        for window in windows:
            stream = self.streams[window.stream]
            masks = window.masks or (None,) * len(window.tokens)
            draws += [stream.draw(stream.rows + 1 + row, mask) for row, mask in enumerate(masks)]
        good = [row for row, fault in enumerate(faults) if not fault]
        tokens = [-1] * len(draws)
        if len(good) == len(draws):
            return sampling.draw(logits_SV, draws, self.steps_V)
        if good:
            drawn = sampling.draw(logits_SV[good], [draws[row] for row in good], self.steps_V)
            for row, token in zip(good, drawn, strict=True):
                tokens[row] = token
        return tokens

    def landed(
        self, window: Window, logits_WV: Tensor, drawn: Sequence[int], faults: Sequence[bool]
    ) -> Landed:
        """A window's outcome: rows count while forced, or equal to what was drawn before them."""
        stream = self.streams[window.stream]
        count = 1
        while count < len(window.tokens):
            if count > window.forced and drawn[count - 1] != window.tokens[count]:
                break
            count += 1
        if any(faults[:count]):
            return Landed(stream=window.stream, fault=FAULT)
        stream.rows += count
        tokens = (*window.tokens[1:count], drawn[count - 1])
        asked = stream.opening.logprobs
        found: tuple[TokenLogprob, ...] = ()
        if asked is not None:
            found = tuple(
                sampling.logprobs(logits_V, token, asked)
                for logits_V, token in zip(logits_WV[:count], tokens, strict=True)
            )
        return Landed(stream=window.stream, tokens=tokens, logprobs=found)

    def drop(self, saved: Saved) -> None:
        self.storage.drop(saved.id)

    def close(self, stream: int) -> None:
        assert self.flying is None, "a flight is open"
        self.storage.release(self.streams.pop(stream).seat)

    def memory(self) -> Memory:
        return self.storage.memory()

    def shutdown(self) -> None:
        self.streams.clear()


def firsts(runs: Sequence[batch.Run]) -> list[int]:
    """The first batch row of each run."""
    found, first = [], 0
    for run in runs:
        found.append(first)
        first += len(run.tokens)
    return found
