"""A host over a fake engine, turned by hand, with a reader that holds it to its word."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tensorfold.backends.fake import model
from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import Call, FakeOptions, VirtualClock
from tensorfold.core.engine_api import Opening, Sampling, Saved, TokenLogprob
from tensorfold.core.keyed import token_sha256
from tensorfold.core.lane_host.host import Host, HostOptions
from tensorfold.core.lane_host.kept import Plan
from tensorfold.core.lane_host.stream import Delivery, End, Job

FINISHED = ("end_token", "stop", "length")


def prompt_of(rows: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((row * row + 3 * row + salt) % model.VOCAB for row in range(rows))


def job(stream: int, rows: int = 4, most: int = 6, **fields: Any) -> Job:
    """A job with `rows` prompt rows of its own; every third one is sampled."""
    fields.setdefault("prompt", prompt_of(rows, stream))
    if stream % 3 == 0:
        fields.setdefault("sampling", Sampling(temperature=1.0))
    return Job(stream=stream, most=most, seed=stream, **fields)


def solo(made: Job) -> list[int]:
    """The reply by the fake's own definition, token by token, with the limits of the job."""
    opening = Opening(
        stream=0, prompt=made.prompt, most=made.most, sampling=made.sampling, seed=made.seed
    )
    whole: list[int] = []
    total, rows = sum(made.prompt), len(made.prompt)
    while len(whole) < made.most:
        forced = made.forces(whole)
        token = forced[0] if forced else model.drawn(total, rows + len(whole), opening)
        whole.append(token)
        total += token
        if token in made.end_tokens or made.ends(whole):
            break
    return whole


def logprobs_of(made: Job, tokens: Sequence[int]) -> list[TokenLogprob]:
    """What the fake says of those tokens, one by one."""
    assert made.logprobs is not None
    found, total = [], sum(made.prompt)
    for length, token in enumerate(tokens, len(made.prompt)):
        found.append(model.logprob(total, length, token, made.logprobs))
        total += token
    return found


class Reader:
    """Takes deliveries; nothing may come twice, after an end, or unasked."""

    def __init__(self) -> None:
        self.batches: list[list[Delivery]] = []
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.ends: dict[int, End] = {}

    def __call__(self, batch: Sequence[Delivery]) -> None:
        streams = [delivery.stream for delivery in batch]
        assert batch, "an empty delivery"
        assert len(set(streams)) == len(streams), f"a stream twice in one delivery: {streams}"
        for delivery in batch:
            assert delivery.stream not in self.ends, f"{delivery} after its end"
            assert delivery.tokens or delivery.end, f"{delivery} brings nothing"
            self.tokens.setdefault(delivery.stream, []).extend(delivery.tokens)
            self.logprobs.setdefault(delivery.stream, []).extend(delivery.logprobs)
            if delivery.end is not None:
                self.ends[delivery.stream] = delivery.end
        self.batches.append(list(batch))


class Shelf:
    """Keeps the states of every prompt at the given rows, at most `most` of them."""

    def __init__(self, *rows: int, most: int = 1000) -> None:
        self.rows = rows
        self.most = most
        self.kept: dict[tuple[int, ...], Saved] = {}

    def plan(self, made: Job) -> Plan:
        marks = tuple(row for row in self.rows if row < len(made.prompt))
        known = (self.kept.get(made.prompt[:row]) for row in reversed(marks))
        return Plan(marks=marks, resume=next((saved for saved in known if saved), None))

    def take(self, made: Job, saved: Saved) -> Sequence[Saved]:
        prefix = made.prompt[: saved.rows]
        gone = [self.kept.pop(prefix)] if prefix in self.kept else []
        self.kept[prefix] = saved
        while len(self.kept) > self.most:
            oldest = self.oldest()
            assert oldest is not None
            gone.append(oldest)
        return gone

    def oldest(self) -> Saved | None:
        return self.kept.pop(next(iter(self.kept))) if self.kept else None


class Rig:
    """`events` lists calls and deliveries as they happen, each as one short string."""

    def __init__(
        self,
        *,
        options: HostOptions | None = None,
        deliver: Callable[[Sequence[Delivery]], None] | None = None,
        before: Callable[[Call], None] | None = None,
        host: dict[str, Any] | None = None,
        **fake: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.reader = Reader()
        self.events: list[str] = []
        self.calls: list[Call] = []
        self.before = before
        self.jobs: dict[int, Job] = {}
        fake.setdefault("fills", {})
        self.shelf = (host or {}).get("keeper")
        self.engine = FakeEngine(FakeOptions(hook=self.hook, wait=self.clock.wait, **fake))
        self.deliver = deliver or self.reader
        self.host = Host(
            self.engine,
            self.take,
            options=options or HostOptions(),
            clock=self.clock,
            **(host or {}),
        )

    def hook(self, call: Call) -> None:
        self.calls.append(call)
        self.events.append(" ".join([call.kind, *map(str, call.streams)]))
        if self.before is not None:
            self.before(call)

    def take(self, batch: Sequence[Delivery]) -> None:
        self.deliver(batch)
        self.events.append("deliver " + " ".join(str(delivery.stream) for delivery in batch))

    def submit(self, *jobs: Job) -> None:
        self.host.submit(jobs)
        self.jobs.update((made.stream, made) for made in jobs)

    def run(self, turns: int = 10_000) -> None:
        """Turn until nothing is left to do."""
        while turns and self.host.turn():
            turns -= 1
        assert turns, "the host never comes to rest"

    def fills(self) -> list[str]:
        """The forwards so far: P1 is a piece of stream 1, P1+2 a pack, R a round."""
        return [
            "R" if call.kind == "round" else "P" + "+".join(map(str, call.streams))
            for call in self.calls
            if call.kind in ("fill", "round")
        ]

    def check(self, lost: bool = False) -> None:
        """Every stream ended once with the tokens of its solo run, and nothing leaks."""
        stats = self.host.stats()
        assert self.engine.slips == []
        assert (stats.lost is not None) == lost, stats.lost
        assert set(self.reader.ends) == set(self.jobs)
        assert (stats.waiting, stats.filling, stats.live, stats.waiting_rows) == (0, 0, 0, 0)
        assert stats.started == stats.finished + stats.failed + stats.aborted == len(self.jobs)
        reasons = [end.reason for end in self.reader.ends.values()]
        assert stats.finished == sum(reason in FINISHED for reason in reasons)
        if not lost:
            assert self.engine.streams == {}
            kept = self.shelf.kept.values() if isinstance(self.shelf, Shelf) else ()
            assert sorted(saved.id for saved in kept) == sorted(self.engine.kept)
        for stream, made in self.jobs.items():
            self.check_stream(made, self.reader.ends[stream], self.reader.tokens[stream])

    def check_stream(self, made: Job, end: End, tokens: list[int]) -> None:
        whole = solo(made)
        assert tokens == (whole if end.reason in FINISHED else whole[: len(tokens)]), made
        assert end.counts.tokens == len(tokens)
        assert end.counts.token_sha256 == token_sha256(tokens)
        assert end.counts.prompt == len(made.prompt)
        assert 0 <= end.counts.accepted <= end.counts.drafted
        assert bool(end.message) == (end.reason not in FINISHED)
        asked = logprobs_of(made, tokens) if made.logprobs is not None else []
        assert self.reader.logprobs[made.stream] == asked
        by_source = end.counts.by_source.values()
        assert end.counts.drafted == sum(drafted for drafted, _ in by_source)
        assert end.counts.accepted == sum(accepted for _, accepted in by_source)
        assert all(0 <= accepted <= drafted for drafted, accepted in by_source)


def eventually(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for another thread, in short naps; fails when it takes too long."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.001)
