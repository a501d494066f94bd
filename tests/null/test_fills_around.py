"""Around the fills: packs, kept states, and what may happen in the middle of a drain."""

from typing import Any

import pytest

from tensorfold.backends.fake.options import Call, Trouble
from tensorfold.core.errors import EngineFault, EngineLost
from tests.null.hosting import Rig, Shelf, job, prompt_of

DRAIN = {"fill_chunks": 1, "fill_many": True, "fill_drain": 4096}
PACK = {"fill_pack": 64}


def burst(count: int, rows: int = 4, **fake: Any) -> Rig:
    rig = Rig(**fake)
    rig.submit(*(job(stream, rows) for stream in range(1, count + 1)))
    rig.run()
    return rig


# -- packs -------------------------------------------------------------------------------------


def test_a_pack_is_one_forward_and_its_first_tokens_leave_together() -> None:
    rig = burst(4, pack_rows=64, fills=PACK)
    rig.check()
    assert rig.fills()[:2] == ["P1+2+3+4", "R"]
    assert [delivery.stream for delivery in rig.reader.batches[0]] == [1, 2, 3, 4]
    assert rig.host.stats().fills["packed"] == 1


@pytest.mark.parametrize("fills", [PACK, {**PACK, "fill_chunks": 1}, {**PACK, **DRAIN}])
def test_of_a_pack_in_which_one_faults_the_others_reply_as_alone(fills: dict[str, int]) -> None:
    trouble = Trouble(kind="fill.land", stream=2, fault="a row of NaN")
    rig = burst(4, pack_rows=64, fills=fills, troubles=(trouble,))
    rig.check()
    assert rig.reader.ends[2].reason == "fault"
    assert rig.reader.ends[2].message == "a row of NaN"
    assert [rig.reader.ends[stream].reason for stream in (1, 3, 4)] == ["length"] * 3


def test_a_pack_that_did_nothing_ends_all_of_it_and_no_more() -> None:
    trouble = Trouble(kind="fill", call=0, error=EngineFault("nothing done"))
    rig = burst(4, rows=20, pack_rows=64, fills={"fill_pack": 60}, troubles=(trouble,))
    rig.check()
    reasons = [rig.reader.ends[stream].reason for stream in (1, 2, 3, 4)]
    assert reasons == ["fault", "fault", "fault", "length"]


def test_a_cancel_during_a_pack_silences_that_stream_alone() -> None:
    def before(call: Call) -> None:
        if call.kind == "fill.land":
            rig.host.cancel(3)

    rig = Rig(pack_rows=64, fills=PACK, before=before)
    rig.submit(*(job(stream) for stream in range(1, 5)))
    rig.run()
    rig.check()
    assert rig.reader.ends[3].reason == "cancelled"
    assert rig.reader.tokens[3] == []


# -- kept states -------------------------------------------------------------------------------


def test_a_forward_is_cut_at_marks_and_a_marked_pass_is_not_packed() -> None:
    rig = Rig(pack_rows=64, fills=PACK, host={"keeper": Shelf(16, 32)})
    rig.submit(job(1, 4), job(2, 40), job(3, 4))
    rig.run()
    rig.check()
    assert rig.fills()[:5] == ["P1", "P2", "P2", "P2", "P3"]
    pieces = [piece for call in rig.calls if call.kind == "fill" for piece in call.pieces]
    assert [(piece.start, piece.end) for piece in pieces[1:4]] == [(0, 16), (16, 32), (32, 40)]


def test_a_resumed_prompt_counts_only_its_rows_to_run() -> None:
    shelf = Shelf(64)
    rig = Rig(fills={"fill_chunks": 1, "fill_drain": 8}, host={"keeper": shelf})
    rig.submit(job(1, 68))
    rig.run()
    rig.submit(*(job(stream, prompt=prompt_of(68, 1)) for stream in (2, 4, 5)))
    before = len(rig.fills())
    rig.run()
    rig.check()
    assert [rig.reader.ends[stream].counts.cached for stream in (1, 2, 4, 5)] == [0, 64, 64, 64]
    assert rig.fills()[before : before + 5] == ["P2", "P4", "R", "P5", "R"]
    rig.host.close(0)
    assert rig.engine.kept == {}


def test_a_reply_after_a_kept_state_is_the_fresh_one() -> None:
    for rows in ((16,), (16, 64, 80), (48, 96)):
        rig = Rig(host={"keeper": Shelf(*rows, most=2)}, chunk_rows=32)
        for stream in (1, 2, 4):
            rig.submit(job(stream, prompt=prompt_of(100, 1), logprobs=1))
            rig.run()
        rig.check()
        assert rig.reader.tokens[1] == rig.reader.tokens[2] == rig.reader.tokens[4]
        assert rig.reader.logprobs[1] == rig.reader.logprobs[4]
        assert len(rig.engine.kept) <= 2


# -- in mid-drain ------------------------------------------------------------------------------


def drained(before: Any = None, **fake: Any) -> Rig:
    fake.setdefault("fills", DRAIN)
    rig = Rig(before=before, **fake)
    rig.submit(*(job(stream) for stream in range(1, 6)))
    return rig


def test_a_cancel_in_mid_drain_takes_that_one_out() -> None:
    def before(call: Call) -> None:
        if call.kind == "fill.land" and call.streams == (2,):
            for stream in (2, 3):  # the one that goes in, and one that waits in the line
                rig.host.cancel(stream)

    rig = drained(before)
    rig.run()
    rig.check()
    assert rig.fills()[:5] == ["P1", "P2", "P4", "P5", "R"]
    assert [rig.reader.ends[stream].reason for stream in (2, 3)] == ["cancelled"] * 2
    assert rig.reader.tokens[2] == rig.reader.tokens[3] == []


def test_a_fault_in_mid_drain_ends_its_stream_alone() -> None:
    rig = drained(troubles=(Trouble(kind="fill.land", stream=2, fault="hurt"),))
    rig.run()
    rig.check()
    assert rig.fills()[:6] == ["P1", "P2", "P3", "P4", "P5", "R"]
    assert rig.reader.ends[2].reason == "fault"


def test_a_call_that_did_nothing_ends_the_drain_for_this_turn() -> None:
    rig = drained(troubles=(Trouble(kind="fill", stream=2, error=EngineFault("not now")),))
    rig.run()
    rig.check()
    assert rig.fills()[:6] == ["P1", "P2", "R", "P3", "P4", "P5"]
    assert rig.reader.ends[2].reason == "fault"


def test_an_engine_lost_in_mid_drain_ends_all() -> None:
    rig = drained(troubles=(Trouble(kind="fill", stream=3, error=EngineLost("gone")),))
    rig.run()
    rig.check(lost=True)
    assert {end.message for end in rig.reader.ends.values()} == {"gone"}


def test_closing_in_mid_drain_gives_replies_in_progress_their_time() -> None:
    def before(call: Call) -> None:
        if call.kind == "fill.land" and call.streams == (2,):
            rig.host.close_now()

    rig = drained(before, lanes=3)
    rig.run()
    rig.check()
    reasons = [rig.reader.ends[stream].reason for stream in range(1, 6)]
    assert reasons == ["closing"] * 5
    assert rig.fills() == ["P1", "P2"]
    assert len(rig.reader.tokens[1]) == 1


def test_a_pass_that_comes_in_mid_drain_joins_it() -> None:
    def before(call: Call) -> None:
        if call.kind == "fill.land" and call.streams == (5,):
            rig.submit(job(7))

    rig = drained(before)
    rig.run()
    rig.check()
    assert rig.fills()[:7] == ["P1", "P2", "P3", "P4", "P5", "P7", "R"]


def test_lanes_that_fill_up_in_mid_drain_end_it() -> None:
    rig = drained(lanes=4)
    rig.run()
    rig.check()
    assert rig.fills()[:5] == ["P1", "P2", "P3", "P4", "R"]


def test_a_stream_that_ends_with_its_first_token_frees_its_lane_for_the_same_drain() -> None:
    rig = Rig(lanes=1, fills=DRAIN)
    rig.submit(*(job(stream, most=1) for stream in range(1, 4)), job(4))
    rig.run()
    rig.check()
    assert rig.fills()[:5] == ["P1", "P2", "P3", "P4", "R"]


def test_background_prompts_drain_behind_foreground_ones() -> None:
    rig = Rig(fills=DRAIN)
    rig.submit(job(1, background=True), job(2), job(4, background=True), job(5))
    rig.run()
    rig.check()
    assert rig.fills()[:5] == ["P2", "P5", "P1", "P4", "R"]
