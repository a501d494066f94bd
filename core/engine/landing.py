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


class Reader:
    """Words in the order in which a step wrote them."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words
        self.at = 0

    def next(self, count: int) -> np.ndarray:
        found = self.words[self.at : self.at + count]
        assert len(found) == count, (self.at, count, len(self.words))
        self.at += count
        return found

    def ints(self, count: int) -> list[int]:
        return self.next(count).tolist()

    def floats(self, count: int) -> list[float]:
        return self.next(count).view(np.float64).tolist()

    def end(self) -> None:
        assert self.at == len(self.words), (self.at, len(self.words))


class Logprobs(NamedTuple):
    """Of told rows: the token's log-probability, and the best `top` of each, flat."""

    own: list[float]
    ids: list[int]
    values: list[float]
    top: int

    def of(self, row: int, token: int, asked: int) -> TokenLogprob:
        best = slice(row * self.top, row * self.top + min(asked, self.top))
        top = tuple(zip(self.ids[best], self.values[best], strict=True))
        return TokenLogprob(token=token, logprob=self.own[row], top=top)


def read_logprobs(reader: Reader, rows: int, top: int) -> Logprobs:
    own = reader.floats(rows)
    return Logprobs(own, reader.ints(rows * top), reader.floats(rows * top), top)


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


def landed(
    order: Order,
    words: np.ndarray,
    streams: Mapping[int, Stream],
    windows: Sequence[Window],
    block: int,
) -> list[Landed | None]:
    """A round's results, none for a window that an unsure draw left as it was.

    Streams take up the rows that count.
    """
    shape = order.shape
    reader = Reader(words)
    counts, nexts, faults = (reader.ints(shape.streams) for _ in range(3))
    held = reader.ints(shape.streams) if shape.noisy else [0] * shape.streams
    needed = reader.ints(shape.drawn) if shape.cut else []
    told = read_logprobs(reader, shape.told, shape.top) if shape.told else None
    drafts = read_drafts(reader, shape, block, order.asks)
    reader.end()
    places = {row: place for place, row in enumerate(order.told)}
    results: list[Landed | None] = []
    first = 0
    for place, window in enumerate(windows):
        stream, count = streams[window.stream], counts[place]
        stream.learn(max(needed[first : first + count], default=0))
        if held[place]:
            results.append(None)
        elif faults[place]:
            results.append(Landed(stream=window.stream, fault=FAULTS[faults[place]]))
        else:
            stream.rows += count
            tokens = (*window.tokens[1:count], nexts[place])
            asked = stream.opening.logprobs
            found: tuple[TokenLogprob, ...] = ()
            if asked is not None and told is not None:
                found = tuple(
                    told.of(places[first + row], token, asked) for row, token in enumerate(tokens)
                )
            guessed = drafts.get(place, Drafts())
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
    return results


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
        for piece, needed in zip(pieces, reader.ints(shape.drawn), strict=True):
            streams[piece.stream].learn(needed)
    if any(unsure):
        return None
    told = read_logprobs(reader, shape.told, shape.top) if shape.told else None
    drafts = read_drafts(reader, shape, block, order.asks)
    read = read_logprobs(reader, shape.read, shape.read_top) if shape.read else None
    reader.end()
    places = {row: place for place, row in enumerate(order.told)}
    results = []
    row = 0
    for place, piece in enumerate(pieces):
        opening = streams[piece.stream].opening
        logprob = None
        if told is not None and place in places and opening.logprobs is not None:
            logprob = told.of(places[place], tokens[place], opening.logprobs)
        rows: list[TokenLogprob] = []
        if read is not None and piece.logprobs is not None:
            for token in opening.prompt[piece.start + 1 : piece.end + 1]:
                rows.append(read.of(row, token, piece.logprobs))
                row += 1
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
