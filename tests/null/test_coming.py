"""Ranks on their way to being ready: one that stalls or dies ends all, one that loads for long does
not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from tensorfold.core.backend_api import Place
from tensorfold.core.engine import coming as comings
from tensorfold.core.engine import link as links
from tensorfold.core.engine.coming import Coming, await_listener, in_time, lead, reach
from tensorfold.core.engine.link import Follower, Leader
from tensorfold.core.errors import NotAllReady, RankGone, StartError
from tensorfold.core.share import Share
from tests.null.hosting import eventually

SILENT = 0.4


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comings, "BEAT_SECONDS", SILENT / 6)
    monkeypatch.setattr(comings, "SILENT_SECONDS", SILENT)
    monkeypatch.setattr(links, "AWAY_SECONDS", SILENT / 2)
    monkeypatch.setattr(comings, "GONE_SECONDS", 0.2)


def place_of(
    rank: int, ranks: int, lost: Callable[[str], None], port: int = 7, seconds: float = 5.0
) -> Place:
    share = Share(rank=rank, ranks=ranks)
    return Place(share=share, host="127.0.0.1", port=port, lost=lost, seconds=seconds)


def reached(place: Place, word: bytes) -> Coming:
    return reach(place, lambda: word, time.monotonic() + place.seconds)


@contextmanager
def met(ranks: int) -> Iterator[tuple[list[Coming], list[list[str]]]]:
    """What each rank of one process has of the others, and what it is told of a loss."""
    told: list[list[str]] = [[] for _ in range(ranks)]
    found: list[Coming] = []
    others = range(1, ranks)

    def say(word: bytes) -> None:
        found.extend(reached(place_of(rank, ranks, told[rank].append), word) for rank in others)

    found.insert(0, lead(place_of(0, ranks, told[0].append), say))
    with ExitStack() as stack:
        for one in found:
            for end in one.ends.values():
                stack.enter_context(closing(end))
        yield found, told
        for one in found:
            one.over = True
        for one in found:
            one.thread.join()


def stopped(one: Coming) -> None:
    """As a process that is stopped: neither hears nor says anything."""
    one.gate.acquire()


def test_a_rank_that_loads_for_as_long_as_it_takes_is_waited_for() -> None:
    with met(3) as (ranks, told):
        time.sleep(2 * SILENT)
        assert told == [[], [], []]
        assert not any(one.over for one in ranks)


@pytest.mark.parametrize("silent", [0, 2])
def test_a_rank_that_stalls_while_it_loads_ends_all_others_with_its_number(silent: int) -> None:
    with met(3) as (ranks, told):
        stopped(ranks[silent])
        words = [f"rank {silent} has been silent for {SILENT:g} s before all were ready"]
        eventually(lambda: [told[rank] for rank in range(3) if rank != silent] == 2 * [words])
        ranks[silent].gate.release()
        # It hears why once it goes on.
        eventually(lambda: told[silent] == words)


def test_a_rank_that_dies_while_it_loads_ends_all_others_with_its_number() -> None:
    with met(3) as (ranks, told):
        ranks[1].over = True
        ranks[1].ends[0].sock.shutdown(socket.SHUT_RDWR)
        words = ["rank 1 ended before all were ready"]
        eventually(lambda: told == [words, [], words])
        with pytest.raises(RankGone, match=words[0]):
            ranks[0].hand_over()


def test_an_exchange_that_fails_before_all_are_ready_tells_every_rank_who_ended_first() -> None:
    failed = RankGone("reset by peer")
    with met(3) as (ranks, told):
        ranks[1].over = True
        ranks[1].ends[0].sock.shutdown(socket.SHUT_RDWR)
        words = "rank 1 ended before all were ready"
        blamed = [ranks[rank].blamed(failed) for rank in (0, 2)]
        assert [(type(one), str(one)) for one in blamed] == 2 * [(NotAllReady, words)]
        eventually(lambda: told == [[], [], [words]])
    with met(2) as (ranks, told):
        ranks[0].hand_over()
        assert ranks[0].blamed(failed) is failed


def test_a_rank_that_is_refused_has_time_to_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comings, "GONE_SECONDS", 60.0)
    with met(2) as (ranks, told):
        ranks[1].ends[0].sock.shutdown(socket.SHUT_RDWR)
        eventually(lambda: 1 in ranks[0].gone)
        time.sleep(SILENT)
        assert told == [[], []]


def test_what_rank_0_says_to_a_rank_that_knows_last_that_all_are_ready_is_not_lost() -> None:
    with met(2) as (ranks, told):
        ranks[0].hand_over()
        leader = Leader(ranks[0].ends)
        leader.call("close", 3)
        eventually(lambda: len(ranks[1].early) == 1)
        leader.call("close", 4)
        eventually(lambda: len(ranks[1].early) == 2)
        ranks[1].hand_over()
        follower = Follower(ranks[1].ends[0], told[1].append, ranks[1].early)
        leader.call("close", 5)
        calls = [follower.next() for _ in range(3)]
        assert [call and (call["step"], call["args"]) for call in calls] == [
            (1, (3,)),
            (2, (4,)),
            (3, (5,)),
        ]
        leader.over.set()
        leader.tell({"end": 1})
        assert follower.next() is None
        follower.close()
        leader.end()
    assert told == [[], []]


def test_ranks_that_do_not_come_are_named_to_those_who_did_and_where_they_were_waited_for() -> None:
    told: list[str] = []
    twice: list[str] = []
    came: list[Coming] = []

    def say(word: bytes) -> None:
        # One that knows no word is nobody.
        port, *_ = comings.decode(word)
        socket.create_connection(("127.0.0.1", port)).close()
        came.append(reached(place_of(2, 5, told.append), word))
        came.append(reached(place_of(2, 5, twice.append), word))

    began = time.monotonic()
    with pytest.raises(StartError) as caught:
        lead(place_of(0, 5, told.append, seconds=0.2), say)
    assert 0.2 <= time.monotonic() - began < 5
    assert str(caught.value) == "ranks 1, 3, 4 did not come to 127.0.0.1 port 7 in 0.2 s"
    eventually(lambda: told == [str(caught.value)])
    eventually(lambda: twice == ["rank 2 has come before"])
    for one in came:
        one.ends[0].close()


def test_a_rank_that_dies_while_others_are_waited_for_ends_those_who_came() -> None:
    told: list[list[str]] = [[], []]
    came: list[Coming] = []
    failed: list[str] = []

    def say(word: bytes) -> None:
        came.append(reached(place_of(1, 3, told[1].append), word))

    def waits() -> None:
        try:
            lead(place_of(0, 3, told[0].append, seconds=0.5), say)
        except StartError as error:
            failed.append(str(error))

    thread = threading.Thread(target=waits)
    thread.start()
    eventually(lambda: len(came) == 1)
    came[0].over = True
    came[0].ends[0].sock.shutdown(socket.SHUT_RDWR)
    eventually(lambda: told[0] == ["rank 1 ended before all were ready"])
    assert failed == []
    thread.join()
    came[0].ends[0].close()


def unused() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_a_place_where_nobody_listens_is_waited_at_for_a_time_and_named() -> None:
    port, told = unused(), list[str]()
    with pytest.raises(StartError) as caught:
        await_listener(place_of(1, 2, told.append, port, 0.3))
    words = f"rank 0 did not come to 127.0.0.1 port {port} in 0.3 s: Connection refused"
    assert str(caught.value) == words


def test_who_listens_and_says_nothing_is_not_waited_for_without_end() -> None:
    began = time.monotonic()
    place = place_of(1, 2, list[str]().append, seconds=0.3)
    with pytest.raises(StartError, match=r"in 0\.3 s: who listens there says nothing"):
        in_time(threading.Event().wait, place, began)
    assert in_time(lambda: 3, place, began) == 3
    with pytest.raises(RuntimeError, match="its own"):
        in_time(lambda: exec("raise RuntimeError('its own')"), place, began)
    assert time.monotonic() - began < 5


def test_a_rank_that_comes_before_rank_0_waits_for_it() -> None:
    port = unused()
    waits = threading.Thread(
        target=await_listener, args=(place_of(1, 2, list[str]().append, port),)
    )
    waits.start()
    time.sleep(0.3)
    assert waits.is_alive()
    with socket.create_server(("127.0.0.1", port)):
        waits.join(5)
        assert not waits.is_alive()


def test_where_rank_0_was_in_a_start_before_is_not_where_it_is_looked_for() -> None:
    before, now = list[bytes](), list[bytes]()
    place, told = place_of(1, 2, list[str]().append), list[Coming]()
    with pytest.raises(StartError, match="rank 1 did not come"):
        lead(place_of(0, 2, list[str]().append, seconds=0.0), before.append)

    def comes(word: bytes) -> None:
        # It is read once more before the new one is there.
        words = iter([before[0], before[0]])
        last = time.monotonic() + place.seconds
        told.append(reach(place, lambda: next(words, word), last))
        now.append(word)

    told.append(lead(place_of(0, 2, list[str]().append), comes))
    assert len(told) == 2
    assert {one.word for one in told} == {comings.decode(now[0])[1]}
    assert before[0] != now[0]
    for one in told:
        one.give_up("over")
    with pytest.raises(StartError, match=r"rank 0 did not come .*: port \d+: Connection refused"):
        reach(place, lambda: before[0], time.monotonic())
