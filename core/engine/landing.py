"""A step's words, once they are on the host, to records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tensorfold.core.engine.asking import Stream
from tensorfold.core.engine.ordering import Order
from tensorfold.core.engine.packing import Shape
from tensorfold.core.engine.step import NO_LOGITS, NO_TOKEN
from tensorfold.core.engine_api import Landed, Piece, TokenLogprob, Window

FAULTS = {
    NO_LOGITS: "the model gave no finite logits",
    NO_TOKEN: "the mask allows no token",
}


class Drafts(NamedTuple):
    """Guesses in order, and the chance that each is right given those before it."""

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()


NO_DRAFTS = Drafts()


class Reader:
    """Words in the order in which a step wrote them."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words
        self.whole: list[int] = words.tolist()
        self.at = 0

    def ints(self, count: int) -> list[int]:
        return self.whole[self.next(count)]

    def floats(self, count: int) -> list[float]:
        return self.words[self.next(count)].view(np.float64).tolist()

    def next(self, count: int) -> slice:
        first, self.at = self.at, self.at + count
        assert self.at <= len(self.whole), (first, count, len(self.whole))
        return slice(first, self.at)

    def end(self) -> None:
        assert self.at == len(self.whole), (self.at, len(self.whole))


class Logprobs(NamedTuple):
    """Of told rows: the token's log-probability, and the best `top` of each with theirs, flat."""

    own: list[float]
    best: list[tuple[int, float]]
    top: int

    def of(
        self, places: Mapping[int, int] | range, first: int, tokens: Sequence[int], asked: int
    ) -> tuple[TokenLogprob, ...]:
        """Of rows from `first` on, which gave these tokens; `places` tells where rows are told."""
        own, best, top = self
        asked = min(asked, top)
        found = []
        for row, token in enumerate(tokens, first):
            place = places[row]
            start = place * top
            most = tuple(best[start : start + asked])
            found.append(TokenLogprob(token=token, logprob=own[place], top=most))
        return tuple(found)


def read_logprobs(reader: Reader, rows: int, top: int) -> Logprobs:
    own = reader.floats(rows)
    ids, values = reader.ints(rows * top), reader.floats(rows * top)
    return Logprobs(own, list(zip(ids, values, strict=True)), top)


def read_drafts(reader: Reader, shape: Shape, block: int, asks: Sequence[int]) -> dict[int, Drafts]:
    """Drafts by the stream's place; `asks` are the places in the order in which they asked."""
    if not shape.depths:
        return {}
    counts = reader.ints(len(asks))
    sizes = [len(asks)] * block or [depth.asks for depth in shape.depths]
    tokens = [reader.ints(size) for size in sizes]
    chances = [reader.floats(size) for size in sizes]
    return {
        place: Drafts(
            tuple(step[ask] for step in tokens[:count]),
            tuple(step[ask] for step in chances[:count]),
        )
        for ask, (place, count) in enumerate(zip(asks, counts, strict=True))
    }


class Needed(NamedTuple):
    """What a round's draws needed, by row, and how many rows of each window counted."""

    streams: Sequence[Stream]
    windows: Sequence[Window]
    counts: Sequence[int]
    needed: Sequence[int]

    def teach(self) -> None:
        """Rows behind a wrong guess teach nothing: their draws are nobody's."""
        first = 0
        for stream, window, count in zip(self.streams, self.windows, self.counts, strict=False):
            stream.learn(max(self.needed[first : first + count]))
            first += len(window.tokens)


def landed(
    order: Order,
    words: np.ndarray,
    streams: Sequence[Stream],
    windows: Sequence[Window],
    block: int,
) -> tuple[list[Landed | None], Needed | None]:
    """A round's results, none for a window that an unsure draw left as it was; and what its draws
    needed, to be learned. `streams` are the windows', which take up the rows that count.
    """
    shape = order.shape
    reader = Reader(words)
    counts, nexts, faults = (reader.ints(shape.streams) for _ in range(3))
    held = reader.ints(shape.streams) if shape.noisy else []
    needed = reader.ints(shape.drawn) if shape.cut else []
    told = read_logprobs(reader, shape.told, shape.top) if shape.told else None
    drafts = read_drafts(reader, shape, block, order.asks)
    reader.end()
    results: list[Landed | None] = []
    first = 0
    found: tuple[TokenLogprob, ...] = ()
    guessed = NO_DRAFTS
    for window, stream, count, last, fault in zip(
        windows, streams, counts, nexts, faults, strict=False
    ):
        if held and held[len(results)]:
            results.append(None)
        elif fault:
            results.append(Landed(stream=window.stream, fault=FAULTS[fault]))
        else:
            stream.rows += count
            tokens = (*window.tokens[1:count], last) if count > 1 else (last,)
            if told is not None:
                asked = stream.opening.logprobs
                found = () if asked is None else told.of(order.told, first, tokens, asked)
            if drafts:
                guessed = drafts.get(len(results), NO_DRAFTS)
            results.append(
                Landed(
                    stream=window.stream,
                    tokens=tokens,
                    logprobs=found,
                    drafts=guessed.tokens,
                    chances=guessed.chances,
                )
            )
        first += len(window.tokens)
    return results, Needed(streams, windows, counts, needed) if needed else None


class Ended(NamedTuple):
    """What a piece's last row gave: a token with its log-probability and drafts, or a fault."""

    token: int
    fault: str | None
    logprob: TokenLogprob | None
    drafts: Drafts
    rows: tuple[TokenLogprob, ...]


def ended(
    order: Order,
    words: np.ndarray,
    streams: Mapping[int, Stream],
    pieces: Sequence[Piece],
    block: int,
) -> list[Ended] | None:
    """What each piece gave; none if a draw is unsure and must be made again."""
    shape = order.shape
    reader = Reader(words)
    tokens, faults = reader.ints(shape.drawn), reader.ints(shape.drawn)
    unsure = reader.ints(shape.drawn) if shape.noisy else []
    if shape.cut:
        for piece, needed in zip(pieces, reader.ints(shape.drawn), strict=False):
            streams[piece.stream].learn(needed)
    if any(unsure):
        return None
    told = read_logprobs(reader, shape.told, shape.top) if shape.told else None
    drafts = read_drafts(reader, shape, block, order.asks)
    read = read_logprobs(reader, shape.read, shape.read_top) if shape.read else None
    reader.end()
    places = order.told
    results = []
    row = 0
    for place, piece in enumerate(pieces):
        opening = streams[piece.stream].opening
        logprob = None
        if told is not None and place in places and opening.logprobs is not None:
            (logprob,) = told.of(places, place, tokens[place : place + 1], opening.logprobs)
        rows: list[TokenLogprob] = []
        if read is not None and piece.logprobs is not None:
            after = opening.prompt[piece.start + 1 : piece.end + 1]
            rows.extend(read.of(range(row + len(after)), row, after, piece.logprobs))
            row += len(after)
        results.append(
            Ended(
                token=tokens[place],
                # A row that nobody reads may have been left out.
                fault=FAULTS.get(faults[place]) if streams[piece.stream].read(piece).last else None,
                logprob=logprob,
                drafts=drafts.get(place, Drafts()),
                rows=tuple(rows),
            )
        )
    return results
