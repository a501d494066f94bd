"""A fake engine whose own time can be taken off, and hosts that decode over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import FakeOptions
from tensorfold.core.engine_api import (
    Filled,
    Flight,
    Landed,
    Memory,
    Opened,
    Opening,
    Piece,
    Sampling,
    Saved,
    Window,
    nobody,
)
from tensorfold.core.lane_host.host import Host, HostOptions
from tensorfold.core.lane_host.stream import Delivery, Job

Result = TypeVar("Result")
CONTEXT = 100_000
MICROSECONDS = 1e6
# Rows that are nearly free: every guess is granted, and each is weighed.
COSTS = tuple((rows, 5.0 + rows / 1000) for rows in range(8, 2049, 8))


class TimedEngine:
    """Counts the seconds inside the engine, and those from a landing to the next launch."""

    def __init__(self, options: FakeOptions) -> None:
        self.engine = FakeEngine(options)
        self.info = self.engine.info
        self.inside = 0.0
        self.landed: float | None = None
        self.gaps: list[float] = []

    def clock(self) -> float:
        """Seconds outside the engine."""
        return time.perf_counter() - self.inside

    def timed(self, call: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        try:
            return call()
        finally:
            self.inside += time.perf_counter() - began

    def launch(self, call: Callable[[], Flight[Result]]) -> TimedFlight[Result]:
        if self.landed is not None:
            self.gaps.append(time.perf_counter() - self.landed)
        return TimedFlight(self, self.timed(call))

    def open(self, opening: Opening) -> Opened:
        return self.timed(lambda: self.engine.open(opening))

    def fill(self, pieces: Sequence[Piece]) -> TimedFlight[Filled]:
        return self.launch(lambda: self.engine.fill(pieces))

    def round(self, windows: Sequence[Window]) -> TimedFlight[Landed]:
        return self.launch(lambda: self.engine.round(windows))

    def drop(self, saved: Saved) -> None:
        self.timed(lambda: self.engine.drop(saved))

    def close(self, stream: int) -> None:
        self.timed(lambda: self.engine.close(stream))

    def memory(self) -> Memory:
        return self.engine.memory()

    def shutdown(self) -> None:
        self.engine.shutdown()


class TimedFlight(Generic[Result]):
    def __init__(self, engine: TimedEngine, flight: Flight[Result]) -> None:
        self.engine = engine
        self.flight = flight

    def land(self, waits: Callable[[], bool] = nobody) -> Sequence[Result]:
        results = self.engine.timed(lambda: self.flight.land(waits))
        self.engine.landed = time.perf_counter()
        return results


def read_nothing(batch: Sequence[Delivery]) -> None:
    return None


def decoding(
    live: int, *, drafts: int = 3, waiting: int = 0, paid: bool = False, **host: Any
) -> tuple[Host, TimedEngine]:
    """A host with that many live streams and, behind them, prompts that wait for a lane.

    `paid`: what rounds take is known, so that rows are granted and drafts asked by their worth.
    """
    costs: dict[str, Any] = {"round_costs": COSTS, "draft_costs": ((1, 0.01),)} if paid else {}
    engine = TimedEngine(FakeOptions(lanes=live, context=CONTEXT, drafts=drafts, **costs))
    options = HostOptions(queue_rows=1 << 40, queue_requests=20_000)
    served = Host(engine, read_nothing, options=options, **host)
    served.submit([job_of(stream, sampled=paid) for stream in range(live)])
    served.turn()
    served.submit([job_of(live + stream, background=bool(stream % 2)) for stream in range(waiting)])
    served.turn()
    assert (served.stats().live, served.stats().waiting) == (live, waiting)
    return served, engine


def job_of(stream: int, *, background: bool = False, sampled: bool = False) -> Job:
    return Job(
        stream=stream,
        prompt=(1, 2, stream % 97),
        most=CONTEXT // 2,
        background=background,
        sampling=Sampling(temperature=float(sampled)),
        seed=stream,
    )
