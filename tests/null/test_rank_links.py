"""A rank's end of its link: calls in order whoever hears them, and every end told once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tensorfold.core.engine import link as links
from tensorfold.core.engine.link import Follower, Frames, Leader, framed
from tests.null.hosting import eventually

# What a rank does while rank 0 goes: it waits for a call, or makes one.
BUSY = pytest.mark.parametrize("busy", [False, True], ids=["waiting", "in a call"])


@dataclass(kw_only=True)
class Linked:
    """A rank's link, rank 0's end of it, and what was heard of its end and of its calls."""

    follower: Follower
    first: Frames
    lost: list[str]
    taken: list[dict[str, Any] | None] = field(default_factory=list)

    def report(self) -> None:
        self.follower.report(1, "x" * 1000)

    def report_on(self) -> None:
        """Report until rank 0 has ended."""
        while not self.follower.over.is_set():
            self.report()

    def take(self) -> None:
        """Take calls until no more come, on this thread."""
        while (call := self.follower.next()) is not None:
            self.taken.append(call)
        self.taken.append(None)


@contextmanager
def linked() -> Iterator[Linked]:
    here, there = socket.socketpair()
    lost: list[str] = []
    found = Linked(follower=Follower(Frames(there), lost.append), first=Frames(here), lost=lost)
    try:
        yield found
    finally:
        here.close()
        found.follower.close()


def taking(rank: Linked, busy: bool) -> threading.Thread:
    """A thread that takes the rank's calls, unless it is busy with one."""
    thread = threading.Thread(target=rank.take)
    if not busy:
        thread.start()
    return thread


def over(rank: Linked, thread: threading.Thread, busy: bool) -> None:
    """What has ended gives no call, now and whenever it is asked."""
    if busy:
        thread.start()
    thread.join(5)
    assert rank.taken[-1] is None
    assert rank.follower.next() is None


@BUSY
@pytest.mark.parametrize("how", ["closed", "lost", "silent", "unreadable"])
def test_a_rank_hears_what_ended_rank_0_and_is_told_once(
    how: str, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"closed": "rank 0 has ended", "lost": "no more", "silent": "silent for 0.6 s"}
    if how == "silent":
        monkeypatch.setattr(links, "SILENT_SECONDS", 0.6)
    with linked() as rank:
        thread = taking(rank, busy)
        began = time.monotonic()
        if how == "closed":
            rank.first.close()
        elif how == "lost":
            rank.first.send({"lost": words[how]})
        elif how == "unreadable":
            rank.first.sock.sendall(b"\x00\x00\x00\x01[")
        eventually(lambda: len(rank.lost) == 1)
        assert time.monotonic() - began < 2
        over(rank, thread, busy)
    assert len(rank.lost) == 1
    assert words.get(how, "cannot be read") in rank.lost[0]


@BUSY
def test_a_rank_that_rank_0_lets_go_is_not_lost(busy: bool) -> None:
    with linked() as rank:
        thread = taking(rank, busy)
        rank.first.send({"end": 1})
        eventually(rank.follower.over.is_set)
        over(rank, thread, busy)
    assert rank.lost == []


@BUSY
def test_a_rank_beats_and_hears_beats_whatever_it_does(
    busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "SILENT_SECONDS", 1.0)
    with linked() as rank:
        thread = taking(rank, busy)
        began, beats = time.monotonic(), 0
        while time.monotonic() - began < 2.5:
            beats += sum("beat" in table for table in rank.first.receive())
            rank.first.send({"beat": 1})
        assert beats >= 3
        assert rank.lost == []
        rank.first.send({"end": 1})
        over(rank, thread, busy)


def test_calls_come_in_order_in_whatever_parts_and_whoever_hears_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The thread that beats hears whatever it can while calls are taken, too.
    monkeypatch.setattr(links, "BEAT_SECONDS", 0.002)
    tables = [{"step": step, "call": "close", "args": (step,)} for step in range(400)]
    raw = b"".join(map(framed, tables))
    with linked() as rank:

        def say() -> None:
            for start in range(0, len(raw), 37):
                rank.first.sock.sendall(raw[start : start + 37])
                if start % 13 == 0:
                    time.sleep(0.001)
            rank.first.send({"end": 1})

        saying = threading.Thread(target=say)
        saying.start()
        while (call := rank.follower.next()) is not None:
            rank.taken.append(call)
            if call["step"] % 5 == 0:
                time.sleep(0.003)
        saying.join()
    assert rank.taken == tables
    assert rank.lost == []


def test_a_rank_that_has_something_to_say_when_rank_0_is_gone_ends_of_that_alone() -> None:
    with linked() as rank:
        rank.first.close()
        for _ in range(3):
            rank.report()
        rank.follower.lose("it could not be told")
        eventually(lambda: rank.lost == ["rank 0 has ended"])


# More than sockets hold.
FLOOD = b"".join(framed({"step": step, "call": "close", "args": (step,)}) for step in range(40_000))
REPORTS = b"".join(framed({"step": step, "outcome": "x" * 32}) for step in range(40_000))


def test_a_rank_that_waits_to_be_heard_goes_on_hearing() -> None:
    with linked() as rank:
        flooding = threading.Thread(target=rank.report_on)
        flooding.start()
        eventually(rank.follower.frames.gate.locked)
        # Beats come due.
        time.sleep(2 * links.BEAT_SECONDS)
        rank.first.sock.sendall(FLOOD)
        assert flooding.is_alive()
        rank.first.sock.shutdown(socket.SHUT_RDWR)
        flooding.join(5)
        assert not flooding.is_alive()


def until_lost(say: Callable[[], None]) -> None:
    with suppress(OSError):
        while True:
            say()


def test_rank_0_goes_on_hearing_while_a_rank_takes_nothing() -> None:
    here, there = socket.socketpair()
    there.settimeout(2)
    leader = Leader({1: Frames(here)})

    def call() -> None:
        leader.call("close", 1)
        if leader.lost is not None:
            raise OSError(leader.lost)

    thread = threading.Thread(target=until_lost, args=(call,))
    try:
        thread.start()
        eventually(lambda: leader.step > 50 and leader.ends[1].gate.locked())
        time.sleep(2 * links.BEAT_SECONDS)
        there.sendall(REPORTS)
        assert leader.lost is None
    finally:
        there.close()
        thread.join(5)
        leader.end()


def test_a_beat_waits_for_nobody() -> None:
    here, there = socket.socketpair()
    end = Frames(here)
    here.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            here.send(b"x")
    here.settimeout(links.SILENT_SECONDS)
    began = time.monotonic()
    end.beat()
    assert time.monotonic() - began < 1
    here.close()
    there.close()


@pytest.mark.parametrize(
    ("said", "told"), [([], "rank 1 has ended"), ([{"lost": "why"}], "rank 1: why")]
)
def test_rank_0_tells_why_a_rank_ended_though_nobody_takes_what_it_says(
    said: list[dict[str, Any]], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear, gone = Leader.hear, threading.Event()

    def later(leader: Leader, rank: int, end: Frames) -> bool:
        # Who hears is behind who speaks.
        assert gone.wait(5)
        time.sleep(0.1)
        return hear(leader, rank, end)

    monkeypatch.setattr(Leader, "hear", later)
    here, there = socket.socketpair()
    leader = Leader({1: Frames(here)})
    other = Frames(there)
    for table in said:
        other.send(table)
    there.shutdown(socket.SHUT_RDWR)
    there.close()
    gone.set()
    leader.call("close", 1)
    assert leader.lost == told
    leader.end()
