"""What rounds cost on this machine, timed at the start by the engine's own calls.

A few row counts are timed, each as the least of a few rounds, since whatever else runs here only
adds; what lies between lies on a straight line. The rounds are of streams that are closed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.draft_settings import drafter_names
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Engine, Info, Opening, Piece, Window

Costs = tuple[tuple[int, float], ...]

ROUNDS = 3
# Rows of a window where a round has enough streams, guesses among them.
WINDOW = 4
# Tokens that a timed stream may come to have.
MOST = 256


class Timing:
    """`streams` hold their pending tokens; all of them have room for `left` more."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self.engine = engine
        self.clock = clock
        info = engine.info
        count = min(info.lanes, info.pack_rows or 1)
        most = min(info.context - 1, MOST)
        names = range(-1, -1 - count, -1)
        for name in names:
            engine.open(Opening(stream=name, prompt=(0,), most=most))
        # One forward: the prompts are short and the engine packs them.
        filled = engine.fill([Piece(stream=name, start=0, end=1) for name in names]).land()
        self.streams = {one.stream: one.token or 0 for one in filled}
        self.left = most - 1

    def milliseconds(self, rows: int, streams: int, want: int = 0) -> float | None:
        """One round of so many rows spread over so many streams; none when no room is left."""
        sizes = [rows // streams + (place < rows % streams) for place in range(streams)]
        if self.left < max(sizes) + want + 1:
            return None
        windows = [
            Window(stream=stream, tokens=(pending, *[0] * (size - 1)), want=want)
            for (stream, pending), size in zip(list(self.streams.items()), sizes, strict=False)
        ]
        began = self.clock()
        landed = self.engine.round(windows).land()
        took = (self.clock() - began) * 1000
        for one in landed:
            self.streams[one.stream] = one.tokens[-1] if one.tokens else 0
        self.left -= max(sizes)
        return took

    def least(self, rows: int, streams: int, want: int = 0) -> float | None:
        """The least of a few rounds; the first may have more to do than those that follow."""
        found = [self.milliseconds(rows, streams, want) for _ in range(ROUNDS)]
        real = [one for one in found if one is not None]
        return min(real) if len(real) == ROUNDS else None

    def close(self) -> None:
        for stream in self.streams:
            self.engine.close(stream)


def timed(
    engine: Engine, levels: Sequence[int], clock: Callable[[], float] = time.perf_counter
) -> tuple[Costs, Costs]:
    """`Info.round_costs` and `Info.draft_costs`; `levels` are the row counts that rounds have once
    they are padded, ascending."""
    info = engine.info
    timing = Timing(engine, clock)
    try:
        rounds = round_costs(timing, info, levels)
        drafts = draft_costs(timing, info) if info.drafts else ()
    finally:
        timing.close()
    return rounds, drafts


def round_costs(timing: Timing, info: Info, levels: Sequence[int]) -> Costs:
    points = []
    for rows in doubled(levels):
        least = timing.least(rows, spread(rows, info, len(timing.streams)))
        if least is not None:
            points.append((rows, least))
    return tuple((rows, between(points, rows)) for rows in levels) if points else ()


def draft_costs(timing: Timing, info: Info) -> Costs:
    """What asking adds to a round in which every stream has its last drafts' rows."""
    costs = []
    for streams in sorted({1, len(timing.streams)}):
        rows = min(streams * min(1 + info.drafts, info.window_rows), info.round_rows)
        plain = timing.least(rows, streams)
        asking = timing.least(rows, streams, want=info.drafts)
        if plain is not None and asking is not None:
            costs.append((streams, max(0.0, asking - plain)))
    return tuple(costs)


def doubled(levels: Sequence[int]) -> list[int]:
    """The first level, each next one that is twice as large or more, and the last."""
    chosen = [levels[0]]
    for level in levels:
        if level >= 2 * chosen[-1]:
            chosen.append(level)
    return chosen if chosen[-1] == levels[-1] else [*chosen, levels[-1]]


def spread(rows: int, info: Info, streams: int) -> int:
    """Over how many streams a round of so many rows is spread."""
    least = -(-rows // info.window_rows)
    return max(least, min(streams, -(-rows // WINDOW)))


def between(points: Sequence[tuple[int, float]], rows: int) -> float:
    """On straight lines between points, and never less than at a point before."""
    before = [point for point in points if point[0] <= rows]
    after = [point for point in points if point[0] >= rows]
    if not after:
        return max(cost for _, cost in points)
    (low, low_cost), (high, high_cost) = (before or after)[-1 if before else 0], after[0]
    low_cost = max((cost for _, cost in before), default=low_cost)
    share = (rows - low) / (high - low) if high > low else 0.0
    return max(low_cost, low_cost + share * (high_cost - low_cost))


def time_rounds(engine: TorchEngine, order: EngineOrder) -> None:
    """Put the costs of rounds into the `info` of an engine that may draft; ranks run the same."""
    if not engine.info.drafts and not drafter_names(order.settings):
        return
    order.progress("timing rounds", 0, 0)
    info, rows_of = engine.info, engine.runner.buckets.rows
    levels = sorted({rows_of(rows) for rows in range(1, info.round_rows + 1)})
    rounds, drafts = timed(engine, [min(level, info.round_rows) for level in levels])
    engine.info = replace(info, round_costs=rounds, draft_costs=drafts)
    engine.storage.peak = 0
