"""Replies made through an engine's door, as a lane host makes them, every call by its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

from tensorfold.core.engine_api import (
    Engine,
    Landed,
    Opening,
    Piece,
    Sampling,
    Saved,
    TokenLogprob,
    Window,
)

MOST = 12
HOW = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
)
# Alternatives asked with each token, by ask.
ALTERNATIVES = (0, 2)
# Rows of the least piece, or more where the grid is coarser.
ROWS = 13


class PromiseBroken(AssertionError):
    """A promise of the engine that does not hold, in words."""


def hold(holds: bool, words: str) -> None:
    if not holds:
        raise PromiseBroken(words)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A reply to be made; `number` is its place among the others."""

    number: int
    prompt: tuple[int, ...]
    sampling: Sampling
    logprobs: int


@dataclass(kw_only=True, slots=True)
class Reply:
    """A reply in the making: its stream, what it has, and the states kept of its prompt."""

    ask: Ask
    stream: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    drafts: Sequence[int] = ()
    saved: list[Saved] = field(default_factory=list)

    @property
    def left(self) -> int:
        return MOST - len(self.tokens)

    def same(self, other: Reply, words: str) -> None:
        what = f"ask {self.ask.number} of {len(self.ask.prompt)} rows, {words}"
        hold(self.tokens == other.tokens, f"{what}: {self.tokens} is not {other.tokens}")
        hold(self.logprobs == other.logprobs, f"{what}: other log-probabilities")


# What stands behind the pending token in a reply's next window, at most so many tokens.
Guess = Callable[[Reply, int], Sequence[int]]


def no_guess(reply: Reply, most: int) -> Sequence[int]:
    return ()


class Driver:
    """Makes replies as a lane host would: every call keeps the door's rules."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.info = engine.info
        self.streams = count(1)
        # Places of the grid this far apart are looked at.
        self.pace = pace_of(engine)

    def opened(
        self, ask: Ask, marks: Sequence[int] = (), resume: Saved | None = None
    ) -> tuple[Reply, int]:
        """A reply whose stream is open, and the row that its prompt goes on from."""
        reply = Reply(ask=ask, stream=next(self.streams))
        opened = self.engine.open(
            Opening(
                stream=reply.stream,
                prompt=ask.prompt,
                most=MOST,
                sampling=ask.sampling,
                seed=ask.number - 1,
                logprobs=ask.logprobs,
                marks=tuple(marks),
                resume=resume,
            )
        )
        hold(opened.stream == reply.stream, f"{opened} answers for stream {reply.stream}")
        on_grid = opened.cached % self.info.grid == 0
        hold(on_grid and 0 <= opened.cached < len(ask.prompt), f"{opened} is no place to go on")
        return reply, opened.cached

    def fill(self, reply: Reply, start: int, cuts: Sequence[int] = ()) -> None:
        """Run a prompt's rows from `start` on, cut at chunk ends and at `cuts`."""
        end = len(reply.ask.prompt)
        ends = {*range(start + self.info.chunk_rows, end, self.info.chunk_rows), *cuts, end}
        for first, last in pairwise([start, *sorted(each for each in ends if each > start)]):
            self.run([self.piece(reply, first, last)], [reply])

    def piece(self, reply: Reply, start: int, end: int) -> Piece:
        want = self.info.drafts if end == len(reply.ask.prompt) else 0
        return Piece(stream=reply.stream, start=start, end=end, want=want)

    def run(self, pieces: Sequence[Piece], replies: Sequence[Reply]) -> None:
        """One forward of a fill; what it gives is kept in the replies."""
        filled = self.engine.fill(pieces).land(lambda: False)
        hold([one.stream for one in filled] == [one.stream for one in pieces], f"order: {filled}")
        for reply, piece, one in zip(replies, pieces, filled, strict=True):
            hold(one.fault is None, f"stream {one.stream} has a fault: {one.fault}")
            ends = piece.end == len(reply.ask.prompt)
            hold((one.token is not None) == ends, f"{one} of {piece}")
            if one.saved is not None:
                hold(one.saved.rows == piece.end, f"{one.saved} is kept at row {piece.end}")
                reply.saved.append(one.saved)
            if one.token is not None:
                self.take(reply, (one.token,), (one.logprob,) if one.logprob else ())
                reply.drafts = one.drafts

    def take(self, reply: Reply, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        told = [one.token for one in logprobs]
        hold(told == [*tokens], f"log-probabilities of {told} for tokens {[*tokens]}")
        tops = {len(one.top) for one in logprobs}
        hold(tops == {reply.ask.logprobs}, f"{tops} alternatives, {reply.ask.logprobs} asked")
        reply.tokens.extend(tokens)
        reply.logprobs.extend(logprobs)

    def finish(self, replies: Sequence[Reply], guess: Guess = no_guess) -> None:
        """Rounds until every reply is whole; then their streams are closed."""
        live = [reply for reply in replies if reply.left]
        while live:
            share = min(self.info.window_rows, self.info.round_rows // len(live))
            windows = []
            for reply in live:
                guesses = guess(reply, min(share, reply.left) - 1)
                want = max(0, min(self.info.drafts, reply.left - 2))
                tokens = (reply.tokens[-1], *guesses)
                windows.append(Window(stream=reply.stream, tokens=tokens, want=want))
            for reply, window, landed in zip(live, windows, self.round(windows), strict=True):
                self.take(reply, landed.tokens, landed.logprobs)
                hold(
                    landed.tokens[:-1] == window.tokens[1 : len(landed.tokens)],
                    f"{landed} accepts what {window} does not guess",
                )
                reply.drafts = landed.drafts
            live = [reply for reply in live if reply.left]
        for reply in replies:
            self.engine.close(reply.stream)

    def round(self, windows: Sequence[Window]) -> Sequence[Landed]:
        landed = self.engine.round(windows).land(lambda: False)
        hold([one.stream for one in landed] == [one.stream for one in windows], f"order: {landed}")
        for one, window in zip(landed, windows, strict=True):
            hold(one.fault is None, f"stream {one.stream} has a fault: {one.fault}")
            hold(0 < len(one.tokens) <= len(window.tokens), f"{one} of {window}")
        return landed

    def alone(self, ask: Ask, cuts: Sequence[int] = (), guess: Guess = no_guess) -> Reply:
        reply, start = self.opened(ask)
        self.fill(reply, start, cuts)
        self.finish([reply], guess)
        return reply


def pace_of(engine: Engine) -> int:
    grid = engine.info.grid
    return grid * -(-ROWS // grid)


def asks_of(engine: Engine) -> list[Ask]:
    """Prompts of lengths around the grid and a chunk's end, as far as the context holds them."""
    info, pace = engine.info, pace_of(engine)
    around = (1, 2, pace - 1, pace, pace + 1, 2 * pace + 3)
    lengths = {*around, info.chunk_rows, info.chunk_rows + info.grid + 1}
    fitting = sorted(length for length in lengths if 0 < length <= info.context - MOST)
    hold(bool(fitting), f"a context of {info.context} holds no reply of {MOST} tokens")
    return [
        Ask(
            number=number,
            prompt=tuple((7 * row + 5 * number + 3) % info.vocab_size for row in range(length)),
            sampling=HOW[number % len(HOW)],
            logprobs=ALTERNATIVES[number % len(ALTERNATIVES)],
        )
        for number, length in enumerate(fitting)
    ]
