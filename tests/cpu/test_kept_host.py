"""Kept states behind a host: given up, shared and resumed where memory is short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tensorfold.core.engine import open_engine
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opened, Opening, Sampling, Saved, TokenLogprob
from tensorfold.core.errors import NoRoom
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.stream import Delivery, Job
from tests.cpu.driving import Asked, alone, opened, some_tokens
from tests.null.hosting import Shelf


def watched(monkeypatch: pytest.MonkeyPatch, engine: TorchEngine) -> Counter[str]:
    """How often room was refused, and states were given up."""
    seen: Counter[str] = Counter()
    open_stream, drop = engine.open, engine.drop

    def opening(asked: Opening) -> Opened:
        try:
            return open_stream(asked)
        except NoRoom:
            seen["no room"] += 1
            raise

    def dropping(saved: Saved) -> None:
        seen["given up"] += 1
        drop(saved)

    monkeypatch.setattr(engine, "open", opening)
    monkeypatch.setattr(engine, "drop", dropping)
    return seen


def test_a_host_that_keeps_and_gives_up_states_in_short_memory_replies_as_with_none(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beginnings that are shared, pieces, drafts, a cancel, and room for three prompts at most."""
    monkeypatch.setattr(open_engine, "time_rounds", lambda *given: None)
    small = opened(
        lanes=3, context=256, chunk_rows=64, drafts=2, kept_bytes=0, fill_chunks=1, fill_many=True
    )
    beginning = some_tokens(200, seed=3)
    jobs = [
        Job(
            stream=stream,
            prompt=(*beginning[:shared], *some_tokens(own, seed=90 + stream)),
            most=7,
            sampling=Sampling(temperature=1.0) if stream % 2 else Sampling(),
            seed=stream,
            logprobs=1,
        )
        for stream, (shared, own) in enumerate(
            [(200, 1), (0, 240), (0, 200), (200, 30), (64, 9), (130, 70), (0, 193), (200, 2)], 1
        )
    ]
    seen = watched(monkeypatch, small)
    told: dict[int, tuple[list[int], list[TokenLogprob]]] = {}
    cached: dict[int, int] = {}

    def deliver(deliveries: Sequence[Delivery]) -> None:
        for one in deliveries:
            tokens, logprobs = told.setdefault(one.stream, ([], []))
            tokens += one.tokens
            logprobs += one.logprobs
            if one.end is not None:
                cached[one.stream] = one.end.counts.cached

    host = Host(small, deliver, keeper=Shelf(64, 128, 192))
    host.submit(jobs)
    while host.turn():
        if told.get(6, ([], []))[0]:
            host.cancel(6)
    assert min(seen["no room"], seen["given up"]) > 2, seen
    assert [cached[stream] for stream in (4, 8)] == [192, 192]
    assert host.stats().accepted["head"] > 0
    for job in jobs:
        asked = Asked(
            prompt=job.prompt, most=job.most, sampling=job.sampling, seed=job.seed, logprobs=1
        )
        fresh = alone(engine, asked)
        tokens, logprobs = told[job.stream]
        assert len(tokens) == job.most or job.stream == 6
        assert (tokens, logprobs) == (
            fresh.tokens[: len(tokens)],
            fresh.logprobs[: len(tokens)],
        ), job.stream
    host.close(0)
    assert small.memory().used == 0
