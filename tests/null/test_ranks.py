"""One engine over several ranks, on engines without a device: replay, outcomes, and ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import FakeOptions, Trouble
from tensorfold.core.engine import link as links
from tensorfold.core.engine import ranks
from tensorfold.core.engine.coming import greeted
from tensorfold.core.engine.index_split import IndexSplit
from tensorfold.core.engine.link import Follower, Frames, Leader
from tensorfold.core.engine.ranks import LeadingEngine, follow
from tensorfold.core.engine.records import Unreadable, decode, digest, encode
from tensorfold.core.engine_api import (
    Filled,
    Flight,
    Landed,
    Opening,
    Piece,
    Sampling,
    Saved,
    Window,
)
from tensorfold.core.errors import EngineFault, EngineLost
from tensorfold.core.lane_host.host import Host
from tests.null.hosting import Reader, eventually, job

SAVED = Saved(id=3, rows=64, bytes=1000)
RECORDS: list[Any] = [
    Opening(
        stream=1,
        prompt=(5, 6, 7),
        most=9,
        sampling=Sampling(temperature=0.1, top_k=3, top_p=1 / 3),
        seed=-(1 << 63),
        logprobs=0,
        marks=(64,),
        resume=SAVED,
    ),
    (Piece(stream=1, start=0, end=64, want=3, mask=b"\x00\xff", logprobs=2, split="rows"),),
    (
        Window(stream=4, tokens=(1, 2), forced=1, masks=(None, b"\x01")),
        Window(stream=5, tokens=(1,), goes_on=True),
    ),
    SAVED,
    7,
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: Any) -> None:
    assert decode(encode(record)) == record
    # What equality leaves out comes along.
    assert repr(decode(encode(record))) == repr(record)


@given(
    st.recursive(
        st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner).map(tuple),
        max_leaves=20,
    )
)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    assert decode(encode(value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        decode(raw)
    except Unreadable:
        return


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b'{"kind":"Popen"}',
        b'{"kind":"Piece","of":[1]}',
        b'{"kind":"Saved","of":[1,2,3,4]}',
        b'{"kind":"bytes","of":"x"}',
        b"\xff",
        b'{"kind":[]}',
        b'{"kind":"bytes"}',
    ],
)
def test_what_is_no_record_is_refused(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        decode(raw)


def test_a_digest_leaves_out_a_kept_states_bytes_alone() -> None:
    one = Filled(stream=1, saved=SAVED)
    assert digest([one]) == digest([replace(one, saved=replace(SAVED, bytes=1))])
    assert digest([one]) != digest([replace(one, saved=replace(SAVED, rows=1))])
    assert digest([one]) != digest([replace(one, token=0)])


@dataclass(kw_only=True)
class Others:
    """Ranks of one process: their engines, and what ended each thread."""

    engines: list[FakeEngine]
    lost: list[str] = field(default_factory=list)
    raised: list[BaseException] = field(default_factory=list)
    ends: list[Frames] = field(default_factory=list)


def led(
    *options: FakeOptions, own: FakeOptions
) -> AbstractContextManager[tuple[LeadingEngine, Others]]:
    """Rank 0's engine, and another of each of `options`."""
    return linked(*map(FakeEngine, options), own=FakeEngine(own))


@contextmanager
def linked(*engines: FakeEngine, own: FakeEngine) -> Iterator[tuple[LeadingEngine, Others]]:
    """Rank 0's engine, and other ranks', each on a thread of its own."""
    others = Others(engines=list(engines))
    ours: dict[int, Frames] = {}
    threads = []
    for rank, engine in enumerate(others.engines, 1):
        here, there = socket.socketpair()
        ours[rank] = Frames(here)
        others.ends.append(Frames(there))
        follower = Follower(others.ends[-1], others.lost.append)
        threads.append(threading.Thread(target=followed, args=(engine, follower, others)))
        threads[-1].start()
    engine = LeadingEngine(own, Leader(ours))
    try:
        yield engine, others
    finally:
        engine.shutdown()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        for end in others.ends:
            end.close()


def followed(engine: FakeEngine, follower: Follower, others: Others) -> None:
    try:
        follow(engine, follower)
    except BaseException as error:
        others.raised.append(error)
    follower.thread.join()


def played(engine: LeadingEngine, jobs: Sequence[Any]) -> Reader:
    reader = Reader()
    host = Host(engine, reader)
    host.submit(jobs)
    while host.turn():
        pass
    return reader


# More than is made before another rank is heard of.
LONG = 1_000_000
PLAIN = FakeOptions(lanes=3, drafts=3, context=1 << 20)


def test_every_rank_makes_the_same_calls_and_ends_with_rank_0() -> None:
    # One is far behind, and has calls left to make when rank 0 ends.
    slow = replace(PLAIN, cost=lambda call: 0.002, wait=time.sleep)
    with led(PLAIN, slow, own=PLAIN) as (engine, others):
        jobs = [job(stream, prompt=(7, stream, 9), most=12) for stream in range(1, 7)]
        reader = played(engine, jobs)
        alone = Reader()
        host = Host(FakeEngine(PLAIN), alone)
        host.submit(jobs)
        while host.turn():
            pass
        assert reader.tokens == alone.tokens
    own = engine.engine
    assert isinstance(own, FakeEngine)
    for other in others.engines:
        assert other.counts == own.counts
        assert other.streams == {}
    assert (others.lost, others.raised) == ([], [])
    assert engine.link.lost is None


def test_how_a_chunk_is_split_is_rank_0s_choice_and_travels_in_its_record() -> None:
    with led(PLAIN, own=PLAIN) as (engine, others):
        engine.split = IndexSplit(position=64, shares="rows")
        (other,) = others.engines
        fill, seen = other.fill, list[str]()

        def filled(pieces: Sequence[Piece]) -> Flight[Filled]:
            seen.extend(piece.split for piece in pieces)
            return fill(pieces)

        other.fill = filled  # type: ignore[method-assign]
        engine.open(Opening(stream=1, prompt=(5,) * 150, most=1))
        for start in (0, 64, 128):
            engine.fill([Piece(stream=1, start=start, end=min(start + 64, 150))]).land()
        engine.close(1)
        eventually(lambda: len(seen) == 3)
    assert seen == ["", "rows", "rows"]
    assert (others.lost, others.raised) == ([], [])


def test_a_call_that_did_nothing_did_nothing_on_every_rank() -> None:
    faulty = replace(PLAIN, troubles=(Trouble(kind="round", call=3, error=EngineFault("no")),))
    with led(faulty, own=faulty) as (engine, others):
        reader = played(engine, [job(1, most=30), job(2, most=2)])
        assert reader.ends[1].reason == "fault"
        assert played(engine, [job(3, most=5)]).ends[3].reason == "length"
        assert engine.link.lost is None
    assert others.lost == []


@pytest.mark.parametrize("kind", ["fill", "round"])
def test_a_rank_whose_outcome_differs_ends_all(kind: str) -> None:
    differing = replace(PLAIN, troubles=(Trouble(kind=f"{kind}.land", call=2, fault="NaN"),))
    with led(PLAIN, differing, own=PLAIN) as (engine, others):
        reader = Reader()
        host = Host(engine, reader)
        engine.watch(host.lose, host.give_up)
        host.submit([job(1, most=LONG), job(2, most=LONG), job(3, most=LONG)])
        while host.turn() or host.stats().lost is None:
            pass
        words = host.stats().lost
        assert words is not None
        assert "rank 2 gave another outcome of step" in words
        assert {end.reason for end in reader.ends.values()} == {"lost"}
        eventually(lambda: others.lost == [words, words])
        with pytest.raises(EngineLost, match="diverged"):
            engine.close(1)


def test_what_fails_on_one_rank_alone_ends_all_with_its_words() -> None:
    broken = replace(PLAIN, troubles=(Trouble(kind="round", call=2, error=ValueError("mine")),))
    with led(broken, own=PLAIN) as (engine, others):
        reader = Reader()
        host = Host(engine, reader)
        engine.watch(host.lose, host.give_up)
        host.submit([job(1, most=LONG)])
        while host.turn() or host.stats().lost is None:
            pass
        assert host.stats().lost == "rank 1: ValueError: mine"
        # The rank tells its words before it ends of them.
        eventually(lambda: [str(error) for error in others.raised] == ["mine"])


@pytest.mark.parametrize("kind", ["fill", "round", "round.land"])
def test_what_fails_on_rank_0_alone_ends_the_others_with_its_words_at_once(kind: str) -> None:
    # They may wait in a forward for what it does not do any more.
    broken = replace(PLAIN, troubles=(Trouble(kind=kind, call=1, error=ValueError("mine")),))
    with led(PLAIN, PLAIN, own=broken) as (engine, others):
        host = Host(engine, Reader())
        engine.watch(host.lose, host.give_up)
        host.submit([job(1, most=LONG), job(2, most=LONG)])
        while host.turn() or host.stats().lost is None:
            pass
        assert host.stats().lost == "ValueError: mine"
        eventually(lambda: others.lost == 2 * ["rank 0: ValueError: mine"])


def test_a_rank_that_ends_while_nothing_runs_is_told_to_the_host_and_to_the_others() -> None:
    with led(PLAIN, PLAIN, own=PLAIN) as (engine, others):
        reader = Reader()
        host = Host(engine, reader)
        engine.watch(host.lose, host.give_up)
        host.start()
        others.ends[0].sock.shutdown(socket.SHUT_RDWR)
        eventually(lambda: host.stats().lost == "rank 1 has ended")
        eventually(lambda: "rank 1 has ended" in others.lost)
        host.close(0)


class Stuck(FakeEngine):
    """A device that waits for another rank until it is let go, and then has something."""

    def __init__(self, let_go: threading.Event) -> None:
        super().__init__(PLAIN)
        self.let_go = let_go

    def round(self, windows: Sequence[Window]) -> Flight[Landed]:
        flight = super().round(windows)

        def land(waits: Callable[[], bool]) -> Sequence[Landed]:
            assert self.let_go.wait(10), "nobody let it go"
            return flight.land()

        return SimpleNamespace(land=land)


def test_a_forward_that_waits_for_a_rank_that_ends_is_let_go_and_gives_nothing() -> None:
    here, there = socket.socketpair()
    let_go = threading.Event()
    engine = LeadingEngine(Stuck(let_go), Leader({1: Frames(here)}), abort=let_go.set)
    engine.open(Opening(stream=1, prompt=(1, 2), most=3))
    (filled,) = engine.fill([Piece(stream=1, start=0, end=2)]).land()
    assert filled.token is not None
    flight = engine.round([Window(stream=1, tokens=(filled.token,))])
    there.close()
    with pytest.raises(EngineLost, match="rank 1 has ended"):
        flight.land()
    engine.shutdown()


def test_a_call_that_is_not_let_go_is_given_up_and_every_reader_has_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "LET_GO_SECONDS", 0.3)
    here, there = socket.socketpair()
    late = threading.Event()
    engine = LeadingEngine(Stuck(late), Leader({1: Frames(here)}))
    reader = Reader()
    host = Host(engine, reader)
    engine.watch(host.lose, host.give_up)
    host.start()
    host.submit([job(1, most=LONG), job(2, most=LONG)])
    eventually(lambda: engine.inside and len(reader.tokens) == 2)
    closing = threading.Thread(target=host.close, args=(60,))
    closing.start()
    there.close()
    eventually(lambda: len(reader.ends) == 2)
    assert {end.reason for end in reader.ends.values()} == {"lost"}
    assert host.stats().lost == "rank 1 has ended"
    closing.join(5)
    assert not closing.is_alive()
    # It comes back after all, and nobody hears of it.
    told = {stream: list(tokens) for stream, tokens in reader.tokens.items()}
    late.set()
    eventually(lambda: all(thread.name != "engine" for thread in threading.enumerate()))
    assert reader.tokens == told
    engine.shutdown()


def test_silence_ends_all_and_a_watchers_own_absence_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "SILENT_SECONDS", 0.3)
    here, there = socket.socketpair()
    leader = Leader({1: Frames(here)})
    try:
        eventually(lambda: leader.lost == "rank 1 has been silent for 0.3 s")
    finally:
        leader.end()
        there.close()
    clock = iter([0.0, 0.0, 0.1, 50.0, 50.1, 50.5])
    monkeypatch.setattr(links.time, "monotonic", lambda: next(clock))
    here, there = socket.socketpair()
    end, watch = Frames(here), links.Watch(0.3)
    assert watch.silent(end) == []
    assert watch.silent(end) == []
    assert watch.silent(end) == []
    assert watch.silent(end) == [end]
    here.close()
    there.close()


@pytest.mark.parametrize(
    "raw",
    [(links.MOST + 1).to_bytes(4, "big"), b"\x00\x00\x00\x01[", b"\x00\x00\x00\x02[]"],
    ids=["too long", "no record", "no table"],
)
def test_what_is_no_frame_ends_all_and_is_not_waited_for(raw: bytes) -> None:
    here, there = socket.socketpair()
    leader = Leader({1: Frames(here)})
    try:
        there.sendall(raw)
        eventually(lambda: (leader.lost or "").startswith("rank 1 said what cannot be read"))
    finally:
        leader.end()
        there.close()


@pytest.mark.parametrize(
    ("said", "rank"), [(b"w" * 32 + b"\x02", 2), (b"x" * 33, None), (b"", None)]
)
def test_a_stranger_at_the_door_is_no_rank(said: bytes, rank: int | None) -> None:
    here, there = socket.socketpair()
    there.sendall(said)
    there.close()
    assert greeted(here, b"w" * 32) == rank
    here.close()
