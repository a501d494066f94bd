"""How often guesses come true: learned for each source, of all streams and of one.

A source's own chance is a label. What counts is how often guesses with such a label at such a depth
came true of late, over all streams, times how this stream has fared at that depth beside that.
Whatever is learned fades, so that a source is judged by what it does now.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

# Depths from the last one on are one, and so are labels between two bounds.
DEPTHS = 6
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


class Source:
    """What one source's guesses have been worth, in all streams.

    `values[depth][label]` is how often they come true; `depths` over all labels, for guesses that
    are not made yet. `seen` and `depths_seen` count what each has learned from, up to FADES.
    """

    def __init__(self) -> None:
        middles = [(low + high) / 2 for low, high in pairwise((0.0, *BOUNDS, 1.0))]
        self.values = [list(middles) for _ in range(DEPTHS)]
        self.seen = [[0] * len(middles) for _ in range(DEPTHS)]
        self.depths = [UNKNOWN] * DEPTHS
        self.depths_seen = [0] * DEPTHS


class Fared:
    """How one stream's guesses of one source fared, by depth: came true, beside what was expected.

    `factor[depth]` is their ratio, 1 at first.
    """

    __slots__ = ("expected", "factor", "true")

    def __init__(self) -> None:
        self.true = [STREAM_TRUSTED] * DEPTHS
        self.expected = [STREAM_TRUSTED] * DEPTHS
        self.factor = [1.0] * DEPTHS


def calibrated(source: Source, fared: Fared, chances: Sequence[float]) -> list[float]:
    """The chance of each guess, given those before it, out of the source's own word."""
    found = []
    values, factor = source.values, fared.factor
    depth = 0
    for own in chances:
        value = values[depth][LABEL_OF[int(own * STEPS)]] * factor[depth]
        found.append(value if value < MOST else MOST)
        if depth < DEPTHS - 1:
            depth += 1
    return found


def expected(source: Source, fared: Fared, most: int) -> list[float]:
    """The chance of each guess that the source would make, before it is asked."""
    depths = [min(depth, DEPTHS - 1) for depth in range(most)]
    return [min(MOST, source.depths[depth] * fared.factor[depth]) for depth in depths]


def learn(
    source: Source,
    fared: Fared,
    guesses: Sequence[int],
    chances: Sequence[float],
    tokens: Sequence[int],
) -> None:
    """Compare guesses with the tokens that came: each tells something if those before it were
    right."""
    depth = 0
    for guess, own, token in zip(guesses, chances, tokens, strict=False):
        right = guess == token
        label = LABEL_OF[int(own * STEPS)]
        values, seen = source.values[depth], source.seen[depth]
        value, count = values[label], seen[label]
        true = fared.true[depth] * STREAM_KEEPS + STREAM_GIVES + right
        hoped = fared.expected[depth] * STREAM_KEEPS + STREAM_GIVES + value
        fared.true[depth], fared.expected[depth] = true, hoped
        fared.factor[depth] = true / hoped
        values[label] = value + (right - value) * GAIN[count]
        if count < FADES:
            seen[label] = count + 1
        value, count = source.depths[depth], source.depths_seen[depth]
        source.depths[depth] = value + (right - value) * GAIN[count]
        if count < FADES:
            source.depths_seen[depth] = count + 1
        if not right:
            return
        if depth < DEPTHS - 1:
            depth += 1
