"""How often guesses come true: learned for each source, of all streams and of one.

A source's own chance is a label. What counts is how often guesses with such a label at such a depth
came true of late, over all streams, times how this stream has fared at that depth beside that.
Whatever is learned fades, so that a source is judged by what it does now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

Depth = TypeVar("Depth")

# Depths from the last one on are one, and so are labels between two bounds.
DEPTHS = 6
LAST = DEPTHS - 1
BOUNDS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.9375, 0.96875)
# Labels looked up in steps fine enough for the bounds.
STEPS = 64
LABEL_OF = tuple(sum(step / STEPS >= bound for bound in BOUNDS) for step in range(STEPS + 1))
# A source's own word counts like so many guesses, and about the last FADES of them count.
TRUSTED = 4
FADES = 60
GAIN = tuple(1 / (TRUSTED + 1 + seen) for seen in range(FADES + 1))
# The same for a stream beside all of them.
STREAM_TRUSTED = 3.0
STREAM_KEEPS = 0.94
STREAM_GIVES = STREAM_TRUSTED * (1 - STREAM_KEEPS)
MOST = 0.995
# What a guess is worth of which nothing is known.
UNKNOWN = 0.6


class Known:
    """What one source's guesses at one depth have been worth, in all streams.

    `values[label]` is how often they come true; `value` over all labels, for guesses that are not
    made yet. `seen` and `count` tell what each has learned from, up to FADES.
    """

    __slots__ = ("count", "seen", "value", "values")

    def __init__(self) -> None:
        self.values = [(low + high) / 2 for low, high in pairwise((0.0, *BOUNDS, 1.0))]
        self.seen = [0] * len(self.values)
        self.value = UNKNOWN
        self.count = 0


class Fared:
    """How one stream's guesses of one source fared at one depth: came true, beside what was
    expected. `factor` is their ratio, 1 at first."""

    __slots__ = ("expected", "factor", "true")

    def __init__(self) -> None:
        self.true = self.expected = STREAM_TRUSTED
        self.factor = 1.0


# Of one source, and of one stream beside it.
Source = Sequence[Known]
Stream = Sequence[Fared]


def by_depth(begin: Callable[[], Depth]) -> list[Depth]:
    return [begin() for _ in range(DEPTHS)]


def calibrated(source: Source, stream: Stream, chances: Sequence[float]) -> list[float]:
    """The chance of each guess, given those before it, out of the source's own word."""
    found = []
    depth = 0
    for own in chances:
        value = source[depth].values[LABEL_OF[int(own * STEPS)]] * stream[depth].factor
        found.append(value if value < MOST else MOST)
        if depth < LAST:
            depth += 1
    return found


def expected(source: Source, stream: Stream, most: int) -> list[float]:
    """The chance of each guess that the source would make, before it is asked."""
    depths = [min(depth, LAST) for depth in range(most)]
    return [min(MOST, source[depth].value * stream[depth].factor) for depth in depths]


def learn(
    source: Source,
    stream: Stream,
    guesses: Sequence[int],
    chances: Sequence[float],
    tokens: Sequence[int],
) -> None:
    """Compare guesses with the tokens that came: each tells something if those before it were
    right."""
    depth = 0
    for guess, own, token in zip(guesses, chances, tokens, strict=False):
        right = 1.0 if guess == token else 0.0
        label = LABEL_OF[int(own * STEPS)]
        known, fared = source[depth], stream[depth]
        values, seen = known.values, known.seen
        value, count = values[label], seen[label]
        fared.true = true = fared.true * STREAM_KEEPS + STREAM_GIVES + right
        fared.expected = hoped = fared.expected * STREAM_KEEPS + STREAM_GIVES + value
        fared.factor = true / hoped
        values[label] = value + (right - value) * GAIN[count]
        if count < FADES:
            seen[label] = count + 1
        value, count = known.value, known.count
        known.value = value + (right - value) * GAIN[count]
        if count < FADES:
            known.count = count + 1
        if not right:
            return
        if depth < LAST:
            depth += 1
