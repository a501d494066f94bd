"""Figures of a story: pure functions over what the clients saw and what the host ran."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tensorfold.core.engine_api import Info
from tensorfold.core.lane_host.trace import Forward, TurnTrace
from tensorfold.tools.sim.costs import Costs, Figures
from tensorfold.tools.sim.world import Seen, Story

EPSILON = 1e-9


def burst(streams: Sequence[Seen]) -> Figures:
    """Aggregate: sum(tokens - 1) / (last token of any - first token of any). Steady: the same while
    all streams are live. The slowest first token counts from its request."""
    first, all_live = min(s.times[0] for s in streams), max(s.times[0] for s in streams)
    one_over, last = min(s.times[-1] for s in streams), max(s.times[-1] for s in streams)
    together = sum(
        tokens
        for seen in streams
        for at, tokens in zip(seen.times, seen.counts, strict=True)
        if all_live < at <= one_over
    )
    return Figures(
        aggregate=sum(len(seen.tokens) - 1 for seen in streams) / (last - first),
        steady=together / (one_over - all_live) if one_over > all_live else 0.0,
        slowest_first=max(seen.waited for seen in streams),
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def mean_figures(runs: Sequence[Figures]) -> Figures:
    return Figures(
        aggregate=mean([run.aggregate for run in runs]),
        steady=mean([run.steady for run in runs]),
        slowest_first=mean([run.slowest_first for run in runs]),
    )


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def gaps(seen: Seen) -> list[float]:
    """Seconds between a stream's deliveries: what a reader sees as stutter."""
    return [after - before for before, after in pairwise(seen.times)]


def longest_gap(story: Story) -> float:
    return max((gap for seen in story.streams for gap in gaps(seen)), default=0.0)


# -- what the host ran -----------------------------------------------------------------------------


def forwards(turns: Sequence[TurnTrace]) -> Iterator[Forward]:
    return (forward for turn in turns for forward in turn.forwards)


def beginning(story: Story, seconds: float) -> tuple[TurnTrace, ...]:
    """The turns that began in the first seconds, for a picture."""
    return tuple(turn for turn in story.turns if turn.began < seconds)


def rows_of(forward: Forward) -> int:
    return sum(piece.end - piece.start for piece in forward.pieces)


def most_rows(story: Story) -> int:
    """The most rows filled before a round that a live stream waited for."""
    return max(sum(rows_of(forward) for forward in turn.forwards) for turn in story.turns)


def rows_bound(info: Info) -> int:
    """Rows that may be filled before a live stream's round; CHUNKS is set."""
    step = info.fill_chunks * info.chunk_rows
    return max(info.fill_drain, step, min(info.fill_pack, info.pack_rows))


def gap_bound(info: Info, costs: Costs, *, shortest: int, context: int) -> float:
    """The longest time between two rounds by the cost model, in seconds: the bounded rows as the
    deepest rows of the context, in as many passes as prompts of `shortest` rows give, and a full
    round of distinct windows."""
    rows = rows_bound(info)
    passes = max(info.fill_chunks, -(-info.fill_drain // shortest))
    fill = passes * costs.a + rows * (costs.b + costs.c * context)
    return (fill + costs.round_ms(info.round_rows, info.lanes)) / 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """The most rounds that ran between two steps of a pass, its admission counting as one, and
    whose pass that was."""

    rounds: int
    stream: int


def longest_wait(story: Story, only: int | None = None) -> Waits:
    landings = [forward.landed for forward in forwards(story.turns) if forward.windows]

    def rounds_by(moment: float) -> int:
        return bisect_right(landings, moment + EPSILON)

    since = {seen.stream: rounds_by(seen.admitted) for seen in story.streams if seen.times}
    worst = Waits(rounds=0, stream=-1)
    for forward in forwards(story.turns):
        rounds = rounds_by(forward.launched)
        for piece in forward.pieces:
            waited = rounds - since.get(piece.stream, rounds)
            if waited > worst.rounds and only in (None, piece.stream):
                worst = Waits(rounds=waited, stream=piece.stream)
            since[piece.stream] = rounds
    return worst


def wait_bound(info: Info) -> int:
    """Rounds within which every admitted pass gets its next step; MANY is set."""
    return info.lanes * max(1, info.fill_rounds) + (1 if info.fill_cut_in else 0)


def pieces_before(story: Story, long: int, short: int) -> int:
    """Pieces of `long` that landed after `short` arrived and were launched before it started."""
    arrived = story.seen(short).arrived
    started = first_launch(story.turns, short)
    return sum(
        forward.landed > arrived and forward.launched < started
        for forward in forwards(story.turns)
        if any(piece.stream == long for piece in forward.pieces)
    )


def first_launch(turns: Sequence[TurnTrace], stream: int) -> float:
    """When the first forward with a piece of the stream was launched, in seconds."""
    return next(
        forward.launched
        for forward in forwards(turns)
        if any(piece.stream == stream for piece in forward.pieces)
    )


def filled_once(story: Story) -> bool:
    """Every prompt row went in exactly once, in order: nothing was given up and run again."""
    reached = dict.fromkeys((seen.stream for seen in story.streams), 0)
    for forward in forwards(story.turns):
        for piece in forward.pieces:
            if reached[piece.stream] != piece.start:
                return False
            reached[piece.stream] = piece.end
    return all(reached[seen.stream] == seen.rows for seen in story.streams)


def order_kept(story: Story) -> bool:
    """Streams were admitted in the order in which they came."""
    return all(
        before.admitted <= after.admitted + EPSILON for before, after in pairwise(story.streams)
    )


def passed_by(story: Story) -> int:
    """The most later ones that were admitted before one that had come earlier."""
    most, later = 0, list(story.streams)
    while later:
        first, *later = later
        most = max(most, sum(seen.admitted < first.admitted - EPSILON for seen in later))
    return most


def kept_rate(beside: Story, lone: Story, stream: int, other: int) -> float:
    """The share of its lone rate that `stream` kept from the first to the last piece of `other`:
    the time of the same deliveries, alone and beside it."""
    launches = [
        forward.launched
        for forward in forwards(beside.turns)
        if any(piece.stream == other for piece in forward.pieces)
    ]
    seen, alone = beside.seen(stream), lone.seen(stream)
    before = [at <= launches[0] + EPSILON for at in seen.times].count(True) - 1
    inside = [at <= launches[-1] + EPSILON for at in seen.times].count(True) - 1
    assert alone.counts == seen.counts, "the lone reply made other tokens"
    assert inside > before, "the stream decoded no round beside the prompt"
    took = seen.times[inside] - seen.times[before]
    return (alone.times[inside] - alone.times[before]) / took
