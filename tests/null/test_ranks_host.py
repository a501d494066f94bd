"""A host over several ranks without a device: cancels, faults, short memory, kept states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import Call, FakeOptions, Trouble
from tensorfold.core.engine_api import Engine
from tensorfold.core.errors import EngineFault
from tensorfold.core.lane_host.host import Host
from tests.null.hosting import Reader, Shelf, job
from tests.null.test_ranks import linked

TROUBLES = (
    Trouble(kind="round", call=9, error=EngineFault("not this time")),
    Trouble(kind="fill.land", call=6, fault="NaN"),
    Trouble(kind="round.land", call=14, fault="NaN"),
    Trouble(kind="close", call=2, error=EngineFault("not this time")),
)
OPTIONS = FakeOptions(
    lanes=4,
    drafts=3,
    pack_rows=64,
    room_tokens=260,
    fills={"fill_chunks": 1, "fill_many": True, "fill_drain": 30, "fill_pack": 16},
    troubles=TROUBLES,
)
# The last never fits; others wait for each other's room, and kept states make way for them.
LENGTHS = (4, 90, 4, 6, 130, 5, 70, 130, 90, 255)
Calls = list[Call]


def noting(calls: Calls, also: Callable[[Call], None] = lambda call: None) -> FakeEngine:
    def hook(call: Call) -> None:
        calls.append(call)
        also(call)

    return FakeEngine(replace(OPTIONS, hook=hook))


def played(engine: Engine, host: list[Host]) -> Reader:
    reader, shelf = Reader(), Shelf(16, 64, most=2)
    host.append(Host(engine, reader, keeper=shelf))
    host[0].submit(
        [
            job(stream, rows, most=9, logprobs=1 if stream % 2 else None)
            for stream, rows in enumerate(LENGTHS, 1)
        ]
    )
    while host[0].turn():
        pass
    host[0].close(0)
    return reader


def cancelling(nth: int, host: list[Host]) -> tuple[Calls, FakeEngine]:
    """An engine that notes its calls, and in whose nth call two streams are cancelled."""
    calls: Calls = []

    def also(call: Call) -> None:
        if len(calls) == nth:
            for stream in (2, 7):
                host[0].cancel(stream)

    return calls, noting(calls, also)


@pytest.mark.parametrize("nth", range(1, 60, 6))
def test_whatever_ends_a_stream_every_rank_makes_the_calls_of_one(nth: int) -> None:
    own_host: list[Host] = []
    wanted, alone = cancelling(nth, own_host)
    lone = played(alone, own_host)
    reasons = {end.reason for end in lone.ends.values()}
    assert reasons == {"length", "fault", "refused", "cancelled"}
    kinds = [call.kind for call in wanted]
    assert kinds.count("open") > len(LENGTHS)
    assert kinds.count("drop") > 2
    host: list[Host] = []
    calls, own = cancelling(nth, host)
    theirs: list[Calls] = [[], []]
    with linked(*map(noting, theirs), own=own) as (engine, others):
        reader = played(engine, host)
        assert engine.link.lost is None
    assert (reader.tokens, reader.logprobs) == (lone.tokens, lone.logprobs)
    assert {s: e.reason for s, e in reader.ends.items()} == {
        s: e.reason for s, e in lone.ends.items()
    }
    assert calls == wanted
    assert theirs == [wanted, wanted]
    assert (others.lost, others.raised) == ([], [])
    held: list[Any] = [[one.streams, one.kept, one.slips] for one in (own, *others.engines)]
    assert held == [[{}, {}, []]] * 3
