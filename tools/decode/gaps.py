"""The gap between two rounds: from the end of one graph's replay to the start of the next.

Events are recorded on the device right before and right behind each replay, so a gap holds all
that the device waits for: words that cross, the wait, the next launch, and landing and the lane
host's turn where that waits for them. The rounds are those of a bare loop over the engine's calls,
or of the lane host on its own thread with its readers on an event loop beside it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch

from tensorfold.core.engine.graphs import Captured, Queued
from tensorfold.core.engine.packing import Shape
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling, Window
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.stream import LENGTH, Job
from tensorfold.core.server.mailroom import Mailroom
from tensorfold.tools.decode import rounds

BARE, HOSTED = "engine alone", "lane host"
GREEDY, SAMPLED = "greedy", "sampled, told"
# Random weights make all tokens about as likely; so much more apart, few tokens are most of it.
SHARPER = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """What every stream asks for."""

    sampling: Sampling = Sampling()
    logprobs: int | None = None


HOWS: Mapping[str, How] = {
    GREEDY: How(),
    SAMPLED: How(sampling=Sampling(temperature=1.0, top_p=0.95), logprobs=2),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Seconds: the median and the longest of `counted` gaps, and a round's median on the device."""

    streams: int
    how: str
    over: str
    median: float
    longest: float
    device: float
    counted: int


# Runs a count of rounds of so many streams, behind prompts of so many rows.
Loop = Callable[[TorchEngine, int, int, int, How], None]


class Event(Protocol):
    def record(self, stream: Any) -> None: ...

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds from this event to the other."""
        ...


class Replay(NamedTuple):
    before: Event
    after: Event


class Marked:
    """A captured graph that takes a pair of events for each replay, while there are some left."""

    def __init__(
        self, graph: Any, stream: Any, unused: list[Replay], replays: list[Replay]
    ) -> None:
        self.graph, self.stream, self.unused, self.replays = graph, stream, unused, replays

    def replay(self) -> None:
        if not self.unused:
            self.graph.replay()
            return
        own = self.unused.pop()
        own.before.record(self.stream)
        self.graph.replay()
        own.after.record(self.stream)
        self.replays.append(own)


@contextmanager
def marking(
    graphs: dict[Shape, Captured], stream: Any, unused: list[Replay]
) -> Iterator[list[Replay]]:
    """Have the graphs of rounds that are there marked while inside; gives their replays in order.

    Prompts are captured too, and are nobody's round.
    """
    replays: list[Replay] = []
    plain = {shape: held for shape, held in graphs.items() if shape.window}
    for shape, held in plain.items():
        marked: Any = Marked(held.graph, stream, unused, replays)
        graphs[shape] = held._replace(graph=marked)
    try:
        yield replays
    finally:
        graphs.update(plain)


def summed(replays: Sequence[Replay], *, streams: int, how: str, over: str) -> Gap:
    pairs = pairwise(replays)
    gaps = [one.after.elapsed_time(other.before) / 1e3 for one, other in pairs]
    busy = [one.before.elapsed_time(one.after) / 1e3 for one in replays]
    return Gap(
        streams=streams,
        how=how,
        over=over,
        median=statistics.median(gaps),
        longest=max(gaps),
        device=statistics.median(busy),
        counted=len(gaps),
    )


def measured(engine: TorchEngine, streams: int, rows: int, reps: int) -> list[Gap]:
    """The gaps of `reps` + 1 rounds of so many streams behind prompts of `rows`, each way.

    None where the engine replays no graphs.
    """
    runner = engine.runner
    if not isinstance(runner, Queued) or not runner.captured or not engine.model.captures:
        return []
    loops: Mapping[str, Loop] = {BARE: bare, HOSTED: hosted}
    found = []
    queue = torch.cuda.current_stream(runner.device)
    with sharper(engine):
        for how, asked in HOWS.items():
            for over, loop in loops.items():
                # Every shape that the same rounds come to is captured first.
                loop(engine, streams, rows, reps + 1, asked)
                with marking(runner.graphs, queue, unused_events(reps + 1, queue)) as replays:
                    loop(engine, streams, rows, reps + 1, asked)
                    torch.cuda.synchronize(runner.device)
                assert len(replays) == reps + 1, f"{len(replays)} of {reps + 1} rounds replayed"
                found.append(summed(replays, streams=streams, how=how, over=over))
    return found


@contextmanager
def sharper(engine: TorchEngine) -> Iterator[None]:
    model: Any = engine.model
    with torch.inference_mode():
        model.weights.head.mul_(SHARPER)
    try:
        yield
    finally:
        with torch.inference_mode():
            # A power of two: the weights are what they were.
            model.weights.head.div_(SHARPER)


def unused_events(count: int, stream: Any) -> list[Replay]:
    """Pairs of timing events that have been recorded once: the first time makes them."""
    made = []
    for _ in range(count):
        pair = Replay(*(torch.cuda.Event(enable_timing=True) for _ in range(2)))
        for event in pair:
            event.record(stream)
        made.append(pair)
    return made


def begun(engine: TorchEngine, streams: int, rows: int, most: int, how: How) -> list[rounds.Live]:
    """So many streams behind prompts of `rows`, with room for `most` tokens."""
    begin = partial(rounds.begun, engine, sampling=how.sampling, logprobs=how.logprobs)
    return [begin(stream, rows, most)[0] for stream in range(streams)]


def bare(engine: TorchEngine, streams: int, rows: int, count: int, how: How) -> None:
    """Rounds of streams that go on with what they draw, which say so as a lane host's do."""
    lives = begun(engine, streams, rows, count + 2, how)
    try:
        pending = [live.tokens[live.rows : live.rows + 1] for live in lives]
        for left in reversed(range(count)):
            windows = [
                Window(stream=live.stream, tokens=tuple(tokens), goes_on=left > 0)
                for live, tokens in zip(lives, pending, strict=True)
            ]
            pending = [landed.tokens for landed in engine.round(windows).land()]
    finally:
        for live in lives:
            engine.close(live.stream)


def hosted(engine: TorchEngine, streams: int, rows: int, count: int, how: How) -> None:
    """Replies over a lane host of its own, from whose rounds all streams' tokens come."""
    asyncio.run(replies(engine, streams, rows, count, how))


async def replies(engine: TorchEngine, streams: int, rows: int, count: int, how: How) -> None:
    reasons: list[str] = []
    room = Mailroom(asyncio.get_running_loop(), lambda end: reasons.append(end.reason))
    host = Host(engine, room.deliver)
    jobs = [
        Job(
            stream=room.number(),
            prompt=prompt_of(engine, number, rows),
            # The first token is the prompt's.
            most=count + 1,
            sampling=how.sampling,
            seed=number,
            logprobs=how.logprobs,
        )
        for number in range(streams)
    ]
    host.start()
    try:
        with room.submitted(host, jobs) as inbox:
            tokens = 0
            while inbox.open or inbox.waiting:
                tokens += sum(len(delivery.tokens) for delivery in await inbox.take())
    finally:
        await asyncio.to_thread(host.close, 0)
    assert reasons == [LENGTH] * streams, reasons
    assert tokens == streams * (count + 1), (tokens, streams, count)


def prompt_of(engine: TorchEngine, number: int, rows: int) -> tuple[int, ...]:
    choice = random.Random(number)
    return tuple(choice.randrange(engine.info.vocab_size) for _ in range(rows))
