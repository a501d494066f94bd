"""What fails on one rank alone, wherever: every rank ends of it in time, and is told its words."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import Trouble
from tensorfold.core.engine import link as links
from tensorfold.core.engine import ranks
from tensorfold.core.engine_api import Engine, Flight, Landed, Opening, Piece, Saved, Window, nobody
from tensorfold.core.errors import EngineFault, EngineLost, RankGone, StartError
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.trace import TurnTrace
from tensorfold.core.server.app import serving
from tensorfold.core.settings import Settings
from tests.null.calling import fake_text
from tests.null.hosting import Reader, eventually, job
from tests.null.test_ranks import LONG, PLAIN, led, linked

# Within which all ranks end; a server then leaves in a few more.
END_SECONDS = 6.0


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ALIKE_SECONDS", 0.3)


class Waiting(FakeEngine):
    """As on a device: the forward of a rank waits for those of all others, without end. `alone` is
    what fails on this one instead, at the forward of its number."""

    def __init__(
        self, together: threading.Barrier, alone: BaseException | None = None, at: int = 0
    ) -> None:
        super().__init__(PLAIN)
        self.together, self.alone, self.left = together, alone, at
        self.taken = 0

    def round(self, windows: Sequence[Window]) -> Flight[Landed]:
        if self.alone is not None:
            if not self.left:
                raise self.alone
            self.left -= 1
        flight = super().round(windows)

        def land(waits: Callable[[], bool] = nobody) -> Sequence[Landed]:
            try:
                self.together.wait(30)
            except threading.BrokenBarrierError:
                raise RankGone("let go") from None
            self.taken += 1
            return flight.land()

        return SimpleNamespace(land=land)


ERRORS = [EngineFault("mine"), RuntimeError("mine"), MemoryError("mine")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("odd", [0, 2], ids=["rank 0", "another"])
def test_no_rank_waits_for_one_that_failed_alone_and_all_have_its_words(
    odd: int, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    together = threading.Barrier(3)
    own, *others = (Waiting(together, error if odd == rank else None, at=3) for rank in range(3))
    with linked(*others, own=own) as (engine, seen):
        # A device lets go of what waits.
        engine.abort = together.abort
        reader = Reader()
        host = Host(engine, reader)
        engine.watch(host.lose, host.give_up)
        host.submit([job(1, most=LONG, draft=False), job(2, most=LONG, draft=False)])
        began = time.monotonic()
        while host.turn() or host.stats().lost is None:
            pass
        assert time.monotonic() - began < END_SECONDS
        words = engine.link.lost or ""
        assert words.startswith(f"rank {odd}: {type(error).__name__}: mine"), words
        assert {end.reason for end in reader.ends.values()} == {"lost"}
        waiting = [rank for rank in (1, 2) if rank != odd]
        eventually(lambda: seen.lost.count(words) >= len(waiting))
    # Where it failed is shown where it did, and nowhere that another's end is why.
    shown = [record for record in caplog.records if record.name == "tensorfold.ranks"]
    assert len(shown) == (odd > 0 and not isinstance(error, EngineFault))
    for record in shown:
        assert record.exc_info is not None
        assert record.exc_info[1] is error
    # Nobody's forward is taken for another's.
    assert max(rank.taken for rank in (own, *others)) <= 3


@pytest.mark.parametrize("kind", ["open", "fill", "fill.land", "close", "drop"])
@pytest.mark.parametrize("odd", [0, 1], ids=["rank 0", "another"])
def test_a_call_that_did_nothing_on_one_rank_alone_ends_all_with_its_words(
    odd: int, kind: str
) -> None:
    broken = replace(PLAIN, troubles=(Trouble(kind=kind, call=1, error=EngineFault("mine")),))
    own, other = (broken if odd == rank else PLAIN for rank in range(2))
    with led(other, own=own) as (engine, others):

        def call() -> None:
            for stream in range(3):
                engine.open(Opening(stream=stream, prompt=(5,) * 20, most=2, marks=(16,)))
                (filled,) = engine.fill([Piece(stream=stream, start=0, end=16)]).land()
                assert isinstance(filled.saved, Saved)
                engine.close(stream)
                engine.drop(filled.saved)
            # Outcomes of the last calls come by themselves.
            eventually(lambda: engine.link.lost is not None)
            engine.close(0)

        with pytest.raises(EngineLost, match=f"rank {odd}: EngineFault: mine"):
            call()
        eventually(lambda: others.lost == [engine.link.lost])


def test_ranks_that_did_nothing_go_on_though_each_says_it_in_words_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "ALIKE_SECONDS", 30)
    faulty = [
        replace(PLAIN, troubles=(Trouble(kind=kind, call=3, error=EngineFault(f"GPU {rank}")),))
        for rank, kind in enumerate(("round", "round", "round.land"))
    ]
    with led(*faulty[1:], own=faulty[0]) as (engine, others):
        reader = Reader()
        host = Host(engine, reader)
        host.submit([job(1, most=30), job(2, most=2)])
        while host.turn():
            pass
        host.submit([job(3, most=5)])
        while host.turn():
            pass
        assert reader.ends[1].message == "GPU 0"
        assert reader.ends[3].reason == "length"
        assert engine.link.lost is None
    assert others.lost == []


@pytest.mark.parametrize("gone", [True, False], ids=["of another that ended", "of itself"])
def test_a_rank_whose_exchange_fails_says_so_if_nothing_else_is_why(
    gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "REASON_SECONDS", 5 if gone else 0.2)
    reset = Trouble(kind="round", call=1, error=RankGone("reset by peer"))
    one = replace(PLAIN, troubles=(reset,))
    with led(one, PLAIN, own=PLAIN) as (engine, others):
        host = Host(engine, Reader())
        engine.watch(host.lose, host.give_up)
        host.submit([job(1, most=LONG)])
        while host.turn() and not others.engines[0].dead:
            pass
        if gone:
            others.ends[1].sock.shutdown(socket.SHUT_RDWR)
        while host.turn() or host.stats().lost is None:
            pass
        words = "rank 2 has ended" if gone else "rank 1: RankGone: reset by peer"
        assert host.stats().lost == words


def test_what_fails_on_rank_0_outside_of_its_engine_ends_the_others_with_its_words() -> None:
    def broken(turn: TurnTrace) -> None:
        raise KeyError("mine")

    with led(PLAIN, PLAIN, own=PLAIN) as (engine, others):
        reader = Reader()
        host = Host(engine, reader, trace=broken)
        engine.watch(host.lose, host.give_up)
        host.submit([job(1, most=LONG)])
        while host.turn():
            pass
        assert reader.ends[1].reason == "lost"
        # A server tells its engine to end, too.
        host.close(0)
    assert others.lost == 2 * ["rank 0: KeyError: 'mine'"]


def test_a_server_that_fails_on_rank_0_ends_the_others_with_its_words() -> None:
    async def unheard(engine: Engine) -> None:
        # Nobody may listen there.
        settings = Settings(host="192.0.2.1", port=0)
        async with serving(engine=engine, text=fake_text(), settings=settings, model="fake"):
            pass

    with led(PLAIN, own=PLAIN) as (engine, others):
        with pytest.raises(StartError) as caught:
            asyncio.run(unheard(engine))
        eventually(lambda: others.lost == [f"rank 0: StartError: {caught.value}"])
