"""Whether a round runs ahead is one decision of all ranks, on engines without a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.core.engine_api import Flight, Landed, Opening, Piece, Window, nobody
from tensorfold.core.errors import EngineLost
from tensorfold.core.lane_host.host import Host
from tests.null.hosting import Reader, eventually, job
from tests.null.test_ranks import LONG, PLAIN, linked


class Asking(FakeEngine):
    """As an engine with a queue: where all streams of a round go on, it asks once it is done
    whether a prompt waits. `but` are the rounds, by number, of which it does not."""

    def __init__(self, but: Sequence[int] = ()) -> None:
        super().__init__(PLAIN)
        self.but = but
        self.rounds = 0
        self.heard: list[bool] = []
        self.ends = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def round(self, windows: Sequence[Window]) -> Flight[Landed]:
        flight = super().round(windows)
        self.rounds += 1
        asks = self.rounds not in self.but and all(window.goes_on for window in windows)

        def land(waits: Callable[[], bool] = nobody) -> Sequence[Landed]:
            self.meanwhile()
            if asks:
                self.heard.append(waits())
            return flight.land()

        return SimpleNamespace(land=land)

    def shutdown(self) -> None:
        self.ends += 1
        super().shutdown()


def test_every_rank_hears_what_rank_0_decides_and_nothing_where_nobody_asks() -> None:
    own, one, two = Asking(), Asking(), Asking()
    waiting = [False, True, True, False, True, False]
    with linked(one, two, own=own) as (engine, others):
        engine.open(Opening(stream=1, prompt=(5, 6), most=20))
        (filled,) = engine.fill([Piece(stream=1, start=0, end=2)]).land(lambda: True)
        tokens = (filled.token,)
        for waits in waiting:
            for goes_on in (True, False):
                window = Window(stream=1, tokens=tokens, goes_on=goes_on)
                (landed,) = engine.round([window]).land(lambda waits=waits: waits)
                tokens = landed.tokens
        engine.close(1)
    assert own.heard == one.heard == two.heard == waiting
    # Each has a round that runs ahead, maybe, and waits for its own.
    assert own.ends == one.ends == two.ends == 1
    assert (others.lost, others.raised) == ([], [])


@pytest.mark.parametrize("odd", [0, 1], ids=["rank 0", "another"])
def test_a_rank_that_would_run_ahead_where_another_would_not_ends_all(odd: int) -> None:
    own, other = (Asking(but=[5] if rank == odd else ()) for rank in range(2))
    with linked(other, own=own) as (engine, others):
        reader = Reader()
        host = Host(engine, reader)
        engine.watch(host.lose, host.give_up)
        host.submit([job(1, most=LONG, draft=False)])
        while host.turn() or host.stats().lost is None:
            pass
        words = host.stats().lost or ""
        assert words.startswith("rank 1: EngineLost: step ")
        assert words.endswith("ranks diverged")
        assert {end.reason for end in reader.ends.values()} == {"lost"}
        eventually(lambda: len(others.raised) == 1)


@pytest.mark.parametrize("how", ["ends", "is lost"])
def test_a_rank_that_waits_for_what_rank_0_says_is_let_go_with_it_and_launches_nothing(
    how: str,
) -> None:
    own, other = Asking(but=[1]), Asking()
    with linked(other, own=own) as (engine, others):
        engine.open(Opening(stream=1, prompt=(5, 6), most=20))
        (filled,) = engine.fill([Piece(stream=1, start=0, end=2)]).land()
        engine.round([Window(stream=1, tokens=(filled.token,), goes_on=True)]).land()
        eventually(lambda: other.rounds == 1)
        assert other.heard == []
        if how == "is lost":
            engine.link.lose(how)
    assert other.heard == [True]
    assert others.lost == (["is lost"] if how == "is lost" else [])


@pytest.mark.parametrize("when", ["while its words are waited for", "while it is told"])
def test_no_round_runs_ahead_of_one_whose_ranks_are_lost_by_then(when: str) -> None:
    own = Asking()
    with linked(Asking(), own=own) as (engine, _):
        engine.open(Opening(stream=1, prompt=(5, 6), most=20))
        (filled,) = engine.fill([Piece(stream=1, start=0, end=2)]).land()
        flight = engine.round([Window(stream=1, tokens=(filled.token,), goes_on=True)])

        def waits() -> bool:
            engine.link.lose("it is lost")
            return False

        if when == "while it is told":
            lost = pytest.raises(EngineLost, match="it is lost")
        else:
            own.meanwhile, lost = (
                lambda: engine.link.lose("gone"),
                pytest.raises(EngineLost, match="gone"),
            )
        with lost:
            flight.land(waits)
        assert own.heard == []


class Ending(FakeEngine):
    """It shuts down behind a round that runs ahead, which ends with what all ranks are told."""

    def __init__(self) -> None:
        super().__init__(PLAIN)
        self.asked = threading.Event()
        self.ends = threading.Event()

    def shutdown(self) -> None:
        self.asked.set()
        assert self.ends.wait(10), "nobody let it go"


def test_a_rank_that_ends_while_the_last_round_ahead_is_waited_for_is_still_heard_of() -> None:
    own = Ending()
    with linked(Asking(), own=own) as (engine, others):
        engine.abort = own.ends.set
        closing = threading.Thread(target=engine.shutdown)
        closing.start()
        assert own.asked.wait(5)
        others.ends[0].sock.close()
        closing.join(8)
        assert not closing.is_alive()
        assert engine.link.lost == "rank 1 has ended"


def test_of_a_lost_engine_no_round_ahead_is_waited_for() -> None:
    own = Ending()
    with linked(Asking(), own=own) as (engine, _):
        engine.link.lose("it is lost")
        with pytest.raises(EngineLost, match="it is lost"):
            engine.close(1)
    assert not own.asked.is_set()
