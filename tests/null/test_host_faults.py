"""Whatever goes wrong, wherever: every stream ends exactly once, and the figures add up."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tensorfold.backends.fake import model
from tensorfold.backends.fake.options import CALLS, Call, Trouble
from tensorfold.core.errors import EngineFault, EngineLost, RequestError
from tensorfold.core.lane_host import lanes as lanes_module
from tensorfold.core.lane_host import turn as turn_module
from tensorfold.core.lane_host.stream import Delivery
from tests.null.hosting import Rig, Shelf, job

FILLS = {"fill_chunks": 1, "fill_many": True, "fill_drain": 30, "fill_pack": 16}


def crowd(**fake: Any) -> Rig:
    """Seven streams over three lanes: pieces, packs, drains, kept states, drafts, all at once."""
    rig = Rig(
        lanes=3,
        drafts=3,
        pack_rows=64,
        fills=FILLS,
        host={"keeper": Shelf(16, 64, most=2), **fake.pop("host", {})},
        **fake,
    )
    lengths = (4, 90, 4, 6, 130, 5, 70)
    rig.submit(*(job(stream, rows, most=9) for stream, rows in enumerate(lengths, 1)))
    return rig


def num_calls() -> dict[str, int]:
    rig = crowd()
    rig.run()
    rig.check()
    return rig.engine.counts


COUNTS = num_calls()
SPOTS = [
    (kind, call)
    for kind in CALLS
    for call in sorted({0, 1, 2, COUNTS[kind] // 2, COUNTS[kind] - 1})
]
LOSSES: list[tuple[str, int, BaseException]] = [
    *((kind, call, EngineLost("a dead rank")) for kind, call in SPOTS),
    *((kind, 1, RuntimeError("out of the blue")) for kind in CALLS),
    *((kind, 1, SystemExit(3)) for kind in CALLS),
]


def test_the_crowd_makes_every_call() -> None:
    assert set(COUNTS) == set(CALLS)


# -- errors of the engine ----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "call", "error"), LOSSES)
def test_an_engine_that_is_lost_ends_every_stream_once(
    kind: str, call: int, error: BaseException
) -> None:
    rig = crowd(troubles=(Trouble(kind=kind, call=call, error=error),))
    if isinstance(error, Exception):
        rig.run()
    else:
        with pytest.raises(SystemExit):
            rig.run()
    rig.check(lost=True)
    stats = rig.host.stats()
    assert str(error) in (stats.lost or "")
    assert not stats.alive
    with pytest.raises(RequestError) as caught:
        rig.host.submit([job(50)])
    assert caught.value.status == 503
    assert caught.value.retry_after


@pytest.mark.parametrize(("kind", "call"), SPOTS)
def test_a_call_that_did_nothing_ends_the_streams_it_named_and_the_host_goes_on(
    kind: str, call: int
) -> None:
    rig = crowd(troubles=(Trouble(kind=kind, call=call, error=EngineFault("not this time")),))
    rig.run()
    rig.check()
    (hit,) = (c for c in rig.calls if c.kind == kind and c.index == call)
    hurt = set(hit.streams) if kind not in ("close", "drop") else set()
    faults = {s for s, end in rig.reader.ends.items() if end.reason == "fault"}
    assert faults == hurt
    assert all(rig.reader.ends[stream].message == "not this time" for stream in hurt)
    rig.submit(job(50))
    rig.run()
    rig.check()


@pytest.mark.parametrize(("kind", "call"), [s for s in SPOTS if s[0].endswith(".land")])
@pytest.mark.parametrize("place", [0, -1])
def test_a_fault_ends_its_stream_and_the_others_keep_their_results(
    kind: str, call: int, place: int
) -> None:
    rig = crowd()
    rig.run()
    (hit,) = (c for c in rig.calls if c.kind == kind and c.index == call)
    stream = hit.streams[place]
    rig = crowd(troubles=(Trouble(kind=kind, call=call, stream=stream, fault="NaN"),))
    rig.run()
    rig.check()
    reasons = {s: end.reason for s, end in rig.reader.ends.items()}
    assert reasons.pop(stream) == "fault"
    assert set(reasons.values()) == {"length"}


@pytest.mark.parametrize("kind", ["fill", "round"])
@pytest.mark.parametrize("wrong", ["swapped", "short", "long", "nothing"])
def test_results_that_answer_another_call_are_a_loss_and_reach_nobody(
    monkeypatch: pytest.MonkeyPatch, kind: str, wrong: str
) -> None:
    rig = Rig(pack_rows=64, fills={"fill_pack": 64})
    launch = getattr(rig.engine, kind)

    class Mixed:
        def __init__(self, batch: Sequence[Any]) -> None:
            self.flight = launch(batch)

        def land(self, *waits: Any) -> list[Any]:
            results = self.flight.land(*waits)
            if wrong == "swapped":
                return results[::-1]
            if wrong == "nothing":
                none = {"token": None} if kind == "fill" else {"tokens": ()}
                return [replace(result, **none) for result in results]
            return results[:-1] if wrong == "short" else [*results, results[0]]

    monkeypatch.setattr(rig.engine, kind, Mixed)
    rig.submit(job(1), job(2))
    rig.run()
    rig.check(lost=True)


@pytest.mark.parametrize("kind", ["fill", "round"])
@pytest.mark.parametrize("token", [model.VOCAB, -1, 1 << 40])
def test_a_token_that_is_none_ends_its_stream_at_once_and_alone(
    monkeypatch: pytest.MonkeyPatch, kind: str, token: int
) -> None:
    rig = crowd()
    run = "run_piece" if kind == "fill" else "run_window"
    right = getattr(rig.engine, run)

    def wrong(asked: Any) -> Any:
        result = right(asked)
        if asked.stream != 4:
            return result
        if kind == "fill":
            return replace(result, token=token)
        return replace(result, tokens=(*result.tokens[:-1], token))

    monkeypatch.setattr(rig.engine, run, wrong)
    rig.run()
    rig.check()
    reasons = {stream: end.reason for stream, end in rig.reader.ends.items()}
    assert reasons.pop(4) == "fault"
    assert set(reasons.values()) == {"length"}
    assert f"{token}" in rig.reader.ends[4].message
    assert "tokens are 0 to 96" in rig.reader.ends[4].message
    assert len(rig.reader.tokens[4]) == (0 if kind == "fill" else 1)


def test_storage_that_is_not_freed_at_the_second_try_is_a_loss() -> None:
    rig = crowd(troubles=(Trouble(kind="close", stream=1, error=EngineFault("stuck")),))
    rig.run()
    rig.check(lost=True)
    assert rig.reader.ends[1].reason == "length"


def test_faults_one_after_the_other_never_stop_the_host() -> None:
    troubles = tuple(Trouble(kind="round.land", call=call, fault="NaN") for call in range(0, 40, 3))
    rig = crowd(troubles=troubles)
    rig.run()
    rig.check()
    assert sum(end.reason == "fault" for end in rig.reader.ends.values()) >= 3


# -- errors of the host itself -----------------------------------------------------------------

OWN_PARTS = {
    "windows": (turn_module.Drafting, "windows"),
    "landed": (turn_module.Drafting, "landed"),
    "catch_up": (turn_module.Drafting, "catch_up"),
    "forwards": (turn_module, "forwards"),
    "opening": (lanes_module, "opening"),
    "admit": (lanes_module.Lanes, "admit"),
    "seat": (lanes_module.Lanes, "seat"),
    "go_live": (lanes_module.Lanes, "go_live"),
    "end": (lanes_module.Lanes, "end"),
    "keep": (lanes_module.Lanes, "keep"),
    "remove": (lanes_module.Queue, "remove"),
    "fills": (turn_module.Turns, "fills"),
    "land_pieces": (turn_module.Turns, "land_pieces"),
    "land_window": (turn_module.Turns, "land_window"),
    "take_turns": (turn_module.Turns, "take_turns"),
    "commit": (turn_module.Turns, "commit"),
    "note": (turn_module.Turns, "note"),
}


@pytest.mark.parametrize("part", OWN_PARTS)
@pytest.mark.parametrize("nth", [0, 3, 4])
@pytest.mark.parametrize("after", [False, True])
def test_an_error_inside_the_hosts_own_turn_ends_every_stream_once(
    monkeypatch: pytest.MonkeyPatch, part: str, nth: int, after: bool
) -> None:
    owner, name = OWN_PARTS[part]
    right: Callable[..., Any] = getattr(owner, name)
    calls = []

    def wrong(*values: Any, **named: Any) -> Any:
        calls.append(name)
        fails = len(calls) == nth + 1
        if fails and not after:
            raise ZeroDivisionError("the host slipped")
        given = right(*values, **named)
        if fails:
            raise ZeroDivisionError("the host slipped")
        return given

    rig = crowd()
    if part == "look":
        rig.host.turn()
        rig.host.close_now()
    monkeypatch.setattr(owner, name, wrong)
    rig.run()
    reached = len(calls) > nth
    assert reached or nth
    rig.check(lost=reached)
    assert ("the host slipped" in (rig.host.stats().lost or "")) == reached


@pytest.mark.parametrize("nth", [0, 1, 5, 12])
@pytest.mark.parametrize("seam", ["next_fill", "trace", "clock", "plan", "take"])
def test_an_error_of_what_the_host_was_given_ends_every_stream_once(seam: str, nth: int) -> None:
    left = [nth]

    def fails(*values: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("no")
        return right(*values)

    right: Callable[..., Any]
    shelf = Shelf(16, 64, most=2)
    rig = crowd(host={"keeper": shelf, **({"trace": fails} if seam == "trace" else {})})
    turns = rig.host._turns
    if seam == "trace":
        right = [].append
    elif seam == "next_fill":
        right, turns.next_fill = turns.next_fill, fails
    elif seam == "clock":
        right, turns.clock = turns.clock, fails
    else:
        right = getattr(shelf, seam)
        setattr(shelf, seam, fails)
    rig.run()
    reached = left[0] < 0
    assert reached or nth == 12
    rig.check(lost=reached)


def test_a_next_fill_that_stalls_with_nothing_live_is_a_loss_not_a_hang() -> None:
    rig = Rig(host={"next_fill": lambda *values: None})
    rig.submit(job(1))
    rig.run()
    rig.check(lost=True)


# -- errors of the reader ----------------------------------------------------------------------


class Deaf:
    """A reader's door that raises at its nth call and, if `stays`, ever after."""

    def __init__(self, rig: Rig, nth: int, *, stays: bool) -> None:
        self.rig, self.left, self.stays = rig, nth, stays

    def __call__(self, batch: Sequence[Delivery]) -> None:
        self.left -= 1
        if self.left == -1 or (self.left < 0 and self.stays):
            raise ConnectionError("nobody there")
        self.rig.reader(batch)


@pytest.mark.parametrize("nth", [0, 1, 3, 7])
def test_a_delivery_that_raises_is_a_loss_and_still_nobody_is_left_without_an_end(
    nth: int,
) -> None:
    rig = crowd()
    rig.deliver = Deaf(rig, nth, stays=False)
    rig.run()
    rig.check(lost=True)


def test_when_one_reader_cannot_be_told_the_others_are() -> None:
    rig = crowd()

    def deliver(batch: Sequence[Delivery]) -> None:
        if any(delivery.stream == 3 for delivery in batch):
            raise ConnectionError("not stream 3")
        rig.reader(batch)

    rig.deliver = deliver
    rig.run()
    assert set(rig.reader.ends) == set(rig.jobs) - {3}
    assert rig.host.stats().lost


def test_readers_that_can_never_be_told_do_not_hang_the_host() -> None:
    rig = crowd()
    rig.deliver = Deaf(rig, 2, stays=True)
    rig.run()
    stats = rig.host.stats()
    assert stats.started == stats.finished + stats.failed + stats.aborted == 7


# -- closing -----------------------------------------------------------------------------------


def test_closing_gives_what_was_taken_its_time_and_ends_the_rest() -> None:
    rig = Rig(lanes=2, cost=lambda call: 1.0 if call.kind == "round.land" else 0.0)
    # The third waits for a lane when closing begins: it was taken, so it has its time too.
    rig.submit(job(1, most=5), job(2, most=50), job(4))
    rig.host.turn()
    rig.host.close(10.0)
    rig.check()
    reasons = {stream: end.reason for stream, end in rig.reader.ends.items()}
    assert reasons == {1: "length", 2: "closing", 4: "length"}
    # A first token, the round before, and nine more: the tenth landed when the time was over.
    assert rig.reader.ends[2].counts.tokens == 11
    stats = rig.host.stats()
    assert (stats.closing, stats.alive, stats.aborted) == (True, False, 1)


def test_a_job_that_comes_between_a_look_and_the_end_is_ended_too() -> None:
    def before(call: Call) -> None:
        if call.kind == "close" and call.index == 0:
            rig.submit(job(5))
            rig.host.close_now()

    rig = Rig(before=before)
    rig.submit(job(1, most=50), job(2, most=50))
    rig.host.turn()
    rig.host.cancel(1)
    rig.run()
    rig.check()
    assert [rig.reader.ends[s].reason for s in (1, 2, 5)] == ["cancelled", "closing", "closing"]
    assert not rig.host.turn()


def test_a_closed_host_takes_no_new_work_and_closes_again_in_peace() -> None:
    rig = Rig()
    rig.host.close(1.0)
    with pytest.raises(RequestError) as caught:
        rig.host.submit([job(1)])
    assert (caught.value.status, bool(caught.value.retry_after)) == (503, True)
    rig.host.close(1.0)
    rig.host.close_now()
    rig.host.cancel(1)


def test_a_second_signal_ends_replies_after_the_forward_in_flight() -> None:
    def before(call: Call) -> None:
        if call.kind == "round" and call.index == 3:
            rig.host.close_now()

    rig = Rig(before=before)
    rig.submit(job(1, most=50), job(2, most=50))
    rig.run()
    rig.check()
    assert rig.fills().count("R") == 4
    assert {end.reason for end in rig.reader.ends.values()} == {"closing"}
    assert {end.counts.tokens for end in rig.reader.ends.values()} == {4}
