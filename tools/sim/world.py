"""The real host over the fake engine in virtual time, and what its clients see.

The clock moves by what forwards cost. Arrivals and cancels happen at their moment, in the middle
of a forward too, as another thread's would.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tensorfold.backends.fake import model
from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import Call, FakeOptions
from tensorfold.core.engine_api import Info, Opening, Window
from tensorfold.core.errors import RequestError
from tensorfold.core.lane_host.host import Host, HostOptions
from tensorfold.core.lane_host.stream import LENGTH, Delivery, End, HostStats, Job
from tensorfold.core.lane_host.trace import TurnTrace
from tensorfold.tools.sim.arms import Limits, fills
from tensorfold.tools.sim.costs import DRAFTS, WINDOW_ROWS, WRONG_IN, Costs, spans_of

MOST_TURNS = 1_000_000
DEFAULT_LIMITS = Limits()
DEFAULT_OPTIONS = HostOptions()


def prompt_of(rows: int, salt: int) -> tuple[int, ...]:
    """Token ids that repeat; other salts give other prompts."""
    factor = 1 + salt // model.VOCAB
    base = tuple((factor * k * k + 3 * k + salt) % model.VOCAB for k in range(model.VOCAB))
    return (base * (rows // model.VOCAB + 1))[:rows]


def job_of(stream: int, rows: int, most: int, salt: int | None = None) -> Job:
    """A greedy job; streams of one salt and length send the same prompt."""
    salt = stream if salt is None else salt
    return Job(stream=stream, prompt=prompt_of(rows, salt), most=most, seed=salt)


class Clock:
    """Seconds of virtual time, and what is to happen at which moment."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()

    def __call__(self) -> float:
        return self.now

    def at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (moment, next(self.order), action))

    def wait(self, seconds: float) -> None:
        """Let time pass; events inside it happen at their moment."""
        until = self.now + seconds
        while self.events and self.events[0][0] <= until:
            self.next_event()
        self.now = until

    def next_event(self) -> None:
        moment, _, action = heapq.heappop(self.events)
        self.now = max(self.now, moment)
        action()


@dataclass(kw_only=True, slots=True)
class Seen:
    """A stream from its client's side; it grows while the world runs.

    `times[i]` is when its i-th delivery with tokens came and `counts[i]` how many tokens it had.
    """

    job: Job
    arrived: float
    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    end: End | None = None

    @property
    def stream(self) -> int:
        return self.job.stream

    @property
    def rows(self) -> int:
        return len(self.job.prompt)

    @property
    def waited(self) -> float:
        """Seconds from its arrival to its first token."""
        return self.times[0] - self.arrived

    @property
    def admitted(self) -> float:
        assert self.end is not None, self.stream
        return self.arrived + self.end.counts.queue_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """A submission that the host refused: seconds, status, and the seconds it was told to wait."""

    at: float
    status: int
    retry_after: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """A world that came to rest. `streams` stand in order of arrival."""

    info: Info
    costs: Costs
    streams: tuple[Seen, ...]
    turns: tuple[TurnTrace, ...]
    refusals: tuple[Refusal, ...]
    stats: HostStats

    def seen(self, stream: int) -> Seen:
        return next(seen for seen in self.streams if seen.stream == stream)


class World:
    """`ended` is called with every stream that ends, at that moment; it may let others arrive."""

    def __init__(
        self,
        arm: Mapping[str, Any],
        costs: Costs,
        *,
        limits: Limits = DEFAULT_LIMITS,
        options: HostOptions = DEFAULT_OPTIONS,
        ended: Callable[[World, Seen], None] | None = None,
    ) -> None:
        self.costs = costs
        self.ended = ended
        self.clock = Clock()
        self.seen: dict[int, Seen] = {}
        self.refusals: list[Refusal] = []
        self.turns: list[TurnTrace] = []
        self.prompts: dict[int, int] = {}
        self.engine = FakeEngine(
            FakeOptions(
                lanes=limits.lanes,
                context=limits.context,
                chunk_rows=limits.chunk_rows,
                pack_rows=limits.pack_rows,
                passes=limits.passes,
                room_tokens=limits.room_tokens,
                window_rows=WINDOW_ROWS,
                drafts=DRAFTS,
                wrong_in=WRONG_IN,
                fills=fills(arm, limits),
                cost=self.seconds,
                wait=self.clock.wait,
            )
        )
        self.host = Host(
            self.engine, self.deliver, options=options, clock=self.clock, trace=self.turns.append
        )

    # -- what happens --------------------------------------------------------------------------

    def arrive(self, at: float, *jobs: Job) -> None:
        """Jobs that are submitted together at a moment, all or none."""
        self.clock.at(at, lambda: self.submit(jobs))

    def cancel(self, at: float, stream: int) -> None:
        self.clock.at(at, lambda: self.host.cancel(stream))

    def submit(self, jobs: Sequence[Job]) -> None:
        now = self.clock()
        try:
            self.host.submit(jobs)
        except RequestError as error:
            self.refusals += [
                Refusal(at=now, status=error.status, retry_after=error.retry_after) for _ in jobs
            ]
        else:
            self.seen.update((job.stream, Seen(job=job, arrived=now)) for job in jobs)

    def deliver(self, batch: Sequence[Delivery]) -> None:
        now = self.clock()
        for delivery in batch:
            seen = self.seen[delivery.stream]
            assert seen.end is None, f"{delivery} after its end"
            if delivery.tokens:
                seen.times.append(now)
                seen.counts.append(len(delivery.tokens))
                seen.tokens += delivery.tokens
            seen.end = delivery.end
            if delivery.end is not None and self.ended is not None:
                self.ended(self, seen)

    def run(self) -> Story:
        """Turn until nothing is left to do and nothing is to come."""
        for _ in range(MOST_TURNS):
            if self.host.turn():
                continue
            if not self.clock.events:
                return self.story()
            self.clock.next_event()
        raise AssertionError("the host never comes to rest")

    def story(self) -> Story:
        stats = self.host.stats()
        assert stats.lost is None, stats.lost
        assert self.engine.slips == [], self.engine.slips
        assert self.engine.streams == {}, "storage leaks"
        return Story(
            info=self.engine.info,
            costs=self.costs,
            streams=tuple(self.seen.values()),
            turns=tuple(self.turns),
            refusals=tuple(self.refusals),
            stats=stats,
        )

    # -- what it costs -------------------------------------------------------------------------

    def seconds(self, call: Call) -> float:
        if call.kind == "fill.land":
            return self.costs.pass_ms(spans_of(call.pieces)) / 1000
        if call.kind == "round.land":
            rows = sum(len(window.tokens) for window in call.windows)
            distinct = len({self.content(window) for window in call.windows})
            return self.costs.round_ms(rows, distinct) / 1000
        return 0.0

    def content(self, window: Window) -> tuple[object, ...]:
        """Equal for windows of equal content. A greedy reply follows from its prompt, so a stream's
        history is its prompt and how far it is."""
        stream = self.engine.streams[window.stream]
        prompt = self.prompts.get(window.stream)
        if prompt is None:
            prompt = self.prompts[window.stream] = hash(stream.opening.prompt)
        return prompt, len(stream.cache), stream.total, window.tokens


def own_reply(job: Job) -> list[int]:
    """The whole greedy reply to a job, by the fake's definition."""
    opening = Opening(stream=0, prompt=job.prompt, most=job.most, seed=job.seed)
    total, length = sum(job.prompt), len(job.prompt)
    tokens: list[int] = []
    while len(tokens) < job.most:
        tokens.append(model.drawn(total, length, opening))
        total += tokens[-1]
        length += 1
    return tokens


def faithful(story: Story) -> bool:
    """Every reply that was taken ended once, whole, with its own tokens."""
    return all(
        seen.end is not None and seen.end.reason == LENGTH and seen.tokens == own_reply(seen.job)
        for seen in story.streams
    )
