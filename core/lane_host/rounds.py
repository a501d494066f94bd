"""The rows of one round: pure functions of what the live streams bring, of costs and of limits.

Every stream's row 0 and its forced tokens come before anyone's guess and are never cut. When even
those do not fit, the least recently served streams go first. Guesses are granted by the likeliest
next row, to where the expected tokens a millisecond are most.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Final, NamedTuple

from tensorfold.core.engine_api import Info

# What a live stream brings: the number of the last round that it was in, how many forced tokens
# follow its row 0, and how likely each guess behind those comes true, given those before it.
Offer = tuple[int, int, Sequence[float]]
SERVED: Final = 0
FORCED: Final = 1
OFFERED: Final = 2

# What one source guesses to follow: its tokens, the chance of each, whose they are, and what the
# source itself calls those chances.
Guess = tuple[Sequence[int], Sequence[float], int, Sequence[float]]
# The guesses that stand in a window: row by row the token, its chance, and whose it is.
Chain = tuple[Sequence[int], Sequence[float], Sequence[int]]
# Places in either.
TOKENS: Final = 0
CHANCES: Final = 1
SOURCE: Final = 2
SOURCES: Final = 2
NO_CHAIN: Chain = ((), (), ())


def chained(guesses: Sequence[Guess], most: int) -> Chain:
    """One chain out of several sources' guesses, of at most `most` rows.

    At each row the likeliest guess stands, of equally likely ones the first source's. A source
    whose guess was another one has nothing to say any more: what follows follows its own guess.
    """
    if len(guesses) == 1:
        alone, worth, source, _ = guesses[0]
        if len(alone) > most:
            alone, worth = alone[:most], worth[:most]
        return alone, worth, (source,) * len(alone)
    tokens: list[int] = []
    chances: list[float] = []
    sources: list[int] = []
    left = [guess for guess in guesses if guess[TOKENS]]
    for row in range(most):
        if len(left) < 2:
            break
        best = left[0]
        for guess in left:
            if guess[CHANCES][row] > best[CHANCES][row]:
                best = guess
        token = best[TOKENS][row]
        tokens.append(token)
        chances.append(best[CHANCES][row])
        sources.append(best[SOURCE])
        left = [
            guess for guess in left if guess[TOKENS][row] == token and len(guess[TOKENS]) > row + 1
        ]
    for alone, worth, source, _ in left[:1]:
        rest = alone[len(tokens) : most]
        chances += worth[len(tokens) : most]
        tokens += rest
        sources += [source] * len(rest)
    return tokens, chances, sources


def share(
    offers: Sequence[Offer], round_rows: int, costs: Sequence[float] = (), extra: float = 0.0
) -> list[int]:
    """Guesses granted to each stream; -1 for one that sits this round out.

    `costs[n]` is what a round of n rows takes, empty where rows are free; `extra` is what the round
    takes besides. Of all numbers of rows, likeliest first, the one with the highest rate is
    granted, of equal rates the fewest rows. A row that is as likely as another comes after it if
    it is deeper, then if its stream was served later.
    """
    counts = []
    rows = len(offers)
    for _, forced, chances in offers:
        counts.append(len(chances))
        rows += forced
    fits = rows + sum(counts) <= round_rows
    if fits and not costs:
        return counts
    order: Sequence[int] = range(len(offers))
    granted = [0] * len(offers)
    if not fits:
        order = sorted(order, key=lambda place: offers[place][SERVED])
        rows = seat(offers, order, granted, round_rows)
        offers = [
            offer if seated >= 0 else (0, 0, ())
            for offer, seated in zip(offers, granted, strict=True)
        ]
    # What each row brings, its stream's earlier ones counted in: it falls with the depth.
    worth: list[list[float]] = []
    ranked: list[float] = []
    for _, _, chances in offers:
        each: list[float] = []
        likely = 1.0
        for chance in chances:
            likely *= chance
            each.append(likely)
        worth.append(each)
        ranked += each
    ranked.sort(reverse=True)
    count = num_rows(ranked[: round_rows - rows], rows, costs, extra)
    if fits and count == len(ranked):
        return counts
    if count:
        grant(worth, order, granted, ranked[count - 1], count)
    return granted


def seat(offers: Sequence[Offer], order: Sequence[int], granted: list[int], round_rows: int) -> int:
    """Rows of the streams that take part; the others' `granted` becomes -1. Nobody is passed:
    whoever waits longest is in the next round."""
    rows = 0
    for rank, place in enumerate(order):
        if rows + 1 + offers[place][FORCED] > round_rows:
            for left_out in order[rank:]:
                granted[left_out] = -1
            break
        rows += 1 + offers[place][FORCED]
    return rows


def num_rows(ranked: Sequence[float], rows: int, costs: Sequence[float], extra: float) -> int:
    """How many of the likeliest rows to grant, beside `rows` that bring a token each."""
    if not costs or not ranked:
        return len(ranked)
    best, most = rows / (costs[rows] + extra), rows
    tokens = float(rows)
    for worth in ranked:
        rows += 1
        tokens += worth
        rate = tokens / (costs[rows] + extra)
        if rate > best:
            best, most = rate, rows
    return most - (rows - len(ranked))


def grant(
    worth: Sequence[Sequence[float]],
    order: Sequence[int],
    granted: list[int],
    least: float,
    count: int,
) -> None:
    """Give `count` rows to whose are worth more than `least`, then to those worth as much."""
    ties = []
    for rank, place in enumerate(order):
        above = sum(each > least for each in worth[place])
        granted[place] += above
        count -= above
        equal = worth[place].count(least)
        ties += [(depth, rank, place) for depth in range(above, above + equal)]
    for _, _, place in sorted(ties)[:count]:
        granted[place] += 1


class Worth(NamedTuple):
    """The streams that draft with profit, and the expected tokens a millisecond with and without
    asking for their drafts."""

    asking: list[bool]
    rate: float
    without: float


def worth_asking(
    offers: Sequence[Offer],
    drafts: Sequence[Sequence[float]],
    round_rows: int,
    costs: Sequence[float],
    drafting: Sequence[float],
) -> Worth:
    """Whose drafts to ask the engine for, if rounds went on like this one.

    `drafts` holds the expected chances of each stream's drafts, none for a stream that takes none;
    `offers` what there is without them, and `drafting[n]` what asking for n streams' takes.
    """
    without = rate(offers, share(offers, round_rows, costs), costs, 0.0)
    joined: list[Offer] = [
        (served, forced, joint(own, chances))
        for (served, forced, own), chances in zip(offers, drafts, strict=True)
    ]
    extra = drafting[sum(bool(chances) for chances in drafts)]
    granted = share(joined, round_rows, costs, extra)
    asking = [
        any(is_likelier(chances, offer[OFFERED], row) for row in range(min(count, len(chances))))
        for count, chances, offer in zip(granted, drafts, offers, strict=True)
    ]
    return Worth(asking, rate(joined, granted, costs, drafting[sum(asking)]), without)


def joint(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Row by row the likelier of two sources' guesses."""
    longer = one if len(one) >= len(other) else other
    both = [max(pair) for pair in zip(one, other, strict=False)]
    return [*both, *longer[len(both) :]]


def is_likelier(one: Sequence[float], other: Sequence[float], row: int) -> bool:
    return row >= len(other) or one[row] > other[row]


def rate(
    offers: Sequence[Offer], granted: Sequence[int], costs: Sequence[float], extra: float
) -> float:
    """Expected tokens a millisecond of a round with those rows."""
    rows = 0
    tokens = 0.0
    for offer, count in zip(offers, granted, strict=True):
        if count < 0:
            continue
        rows += 1 + offer[FORCED] + count
        tokens += 1 + offer[FORCED] + sum(accumulate(offer[OFFERED][:count], mul))
    return tokens / (costs[rows] + extra)


def wanted(left: int, info: Info) -> int:
    """Drafts to ask for, when `left` tokens may be committed after the coming one."""
    return max(0, min(info.drafts, info.window_rows - 1, left - 1))
