"""A cancel in every state: one end, the lane and the storage free, nothing more emitted."""

from collections.abc import Callable

import pytest

from tensorfold.backends.fake.options import Call
from tests.null.hosting import Rig, Shelf, job


def cancelling(when: Callable[[Call], bool], *streams: int, **fake: object) -> Rig:
    """A rig that cancels the streams the first time a call fits."""
    done: list[bool] = []

    def before(call: Call) -> None:
        if when(call) and not done:
            done.append(True)
            for stream in streams:
                rig.host.cancel(stream)

    rig = Rig(before=before, **fake)
    return rig


def test_before_its_first_turn() -> None:
    rig = Rig()
    rig.submit(job(1), job(2))
    rig.host.cancel(1)
    rig.run()
    rig.check()
    assert rig.reader.ends[1].reason == "cancelled"
    assert "open 1" not in rig.events


def test_queued() -> None:
    rig = cancelling(lambda call: call.kind == "round", 2, lanes=1)
    rig.submit(job(1), job(2), job(4))
    rig.run()
    rig.check()
    assert rig.reader.ends[2].reason == "cancelled"
    assert "open 2" not in rig.events
    assert rig.reader.ends[4].reason == "length"


@pytest.mark.parametrize("fills", [{}, {"fill_chunks": 1}])
def test_filling_it_runs_no_further_piece(fills: dict[str, int]) -> None:
    rig = cancelling(lambda call: call.kind == "fill", 1, fills=fills)
    rig.submit(job(1, rows=200), job(2, rows=200))
    rig.run()
    rig.check()
    assert rig.reader.ends[1].reason == "cancelled"
    assert rig.fills().count("P1") == 1
    assert rig.events.index("close 1") == rig.events.index("fill.land 1") + 1
    assert rig.reader.ends[2].reason == "length"


@pytest.mark.parametrize("kind", ["fill", "fill.land"])
def test_in_the_step_in_which_its_pass_ends_it_emits_nothing(kind: str) -> None:
    rig = cancelling(lambda call: call.kind == kind and call.streams == (1,), 1)
    rig.submit(job(1), job(2))
    rig.run()
    rig.check()
    assert rig.reader.ends[1].reason == "cancelled"
    assert rig.reader.tokens[1] == []
    assert rig.host.stats().first_tokens == 1


@pytest.mark.parametrize("kind", ["round", "round.land"])
def test_live_in_a_round_it_emits_nothing_of_that_round(kind: str) -> None:
    rig = cancelling(lambda call: call.kind == kind and call.index == 2, 1)
    rig.submit(job(1), job(2))
    rig.run()
    rig.check()
    assert rig.reader.ends[1].reason == "cancelled"
    # A first token and two rounds: what the second round owed left beside the third one's launch.
    assert len(rig.reader.tokens[1]) == 3
    assert rig.events.index("close 1") < rig.events.index("round 2")


def test_between_turns_what_was_owed_is_dropped() -> None:
    rig = Rig()
    rig.submit(job(1, most=20, logprobs=2), job(2))
    for _ in range(3):
        rig.host.turn()
    rig.host.cancel(1)
    rig.run()
    rig.check()
    assert len(rig.reader.tokens[1]) == rig.reader.ends[1].counts.tokens == 3


def test_the_state_that_a_cancelled_pass_left_is_kept_or_dropped_like_any_other() -> None:
    rig = cancelling(lambda call: call.kind == "fill.land", 1, host={"keeper": Shelf(16)})
    rig.submit(job(1, rows=40), job(2, rows=40))
    rig.run()
    rig.check()
    assert len(rig.engine.kept) == 2


def test_it_frees_the_lane_before_the_next_round() -> None:
    rig = cancelling(lambda call: call.kind == "round" and call.index == 1, 1, lanes=1)
    rig.submit(job(1, most=50), job(2))
    rig.run()
    rig.check()
    assert rig.fills()[:5] == ["P1", "R", "R", "P2", "R"]


def test_every_stream_at_once() -> None:
    rig = cancelling(lambda call: call.kind == "round", *range(1, 8), lanes=3)
    rig.submit(*(job(stream) for stream in range(1, 8)))
    rig.run()
    rig.check()
    assert {end.reason for end in rig.reader.ends.values()} == {"cancelled"}
    assert rig.host.stats().aborted == 7


def test_twice_late_and_unknown_are_fine() -> None:
    rig = Rig()
    rig.host.cancel(99)
    rig.submit(job(1, most=1), job(2))
    for stream in (2, 2, 7):
        rig.host.cancel(stream)
    rig.run()
    for stream in (1, 2):
        rig.host.cancel(stream)
    rig.run()
    rig.check()
    assert [rig.reader.ends[stream].reason for stream in (1, 2)] == ["length", "cancelled"]


def test_a_reader_may_cancel_and_submit_while_it_is_told() -> None:
    rig = Rig()

    def deliver(batch: object) -> None:
        rig.reader(batch)  # type: ignore[arg-type]
        if len(rig.reader.batches) == 1:
            rig.host.cancel(1)
            rig.submit(job(2))

    rig.deliver = deliver
    rig.submit(job(1, most=50))
    rig.run()
    rig.check()
    assert rig.reader.ends[1].reason == "cancelled"
    assert rig.reader.ends[2].reason == "length"


@pytest.mark.parametrize("state", range(40))
def test_others_reply_as_if_it_had_never_been(state: int) -> None:
    """Cancel stream 2 at the n-th call, whatever that is."""
    seen: list[Call] = []

    def before(call: Call) -> None:
        seen.append(call)
        if len(seen) == state + 1:
            rig.host.cancel(2)

    rig = Rig(
        before=before, lanes=2, drafts=3, fills={"fill_chunks": 1, "fill_many": True}, chunk_rows=32
    )
    rig.submit(*(job(stream, rows=40 * stream, most=9) for stream in range(1, 4)))
    rig.run()
    rig.check()
