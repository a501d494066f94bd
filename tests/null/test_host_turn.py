"""The plain turn: what runs when, what leaves when, and where a reply ends."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tensorfold.backends.fake import model
from tensorfold.backends.fake.options import Call
from tensorfold.core.engine_api import Landed, Opening, Sampling, Window
from tensorfold.core.errors import RequestError
from tensorfold.core.lane_host.stream import Delivery
from tensorfold.core.lane_host.trace import TurnTrace
from tests.null.hosting import Rig, job, prompt_of, solo


def test_the_plain_turn_is_every_prompt_whole_then_one_round() -> None:
    rig = Rig(lanes=4)
    rig.submit(*(job(stream, rows=70, most=3) for stream in range(1, 6)))
    rig.run()
    rig.check()
    assert rig.events == [
        "open 1",
        "open 2",
        "open 3",
        "open 4",
        *["fill 1", "fill.land 1"] * 2,
        "deliver 1",
        *["fill 2", "fill.land 2"] * 2,
        "deliver 2",
        *["fill 3", "fill.land 3"] * 2,
        "deliver 3",
        *["fill 4", "fill.land 4"] * 2,
        "deliver 4",
        *["round 1 2 3 4", "round.land 1 2 3 4"],
        *["round 1 2 3 4", "deliver 1 2 3 4", "round.land 1 2 3 4"],
        *["close 1", "close 2", "close 3", "close 4"],
        "open 5",
        *["fill 5", "deliver 1 2 3 4", "fill.land 5", "fill 5", "fill.land 5"],
        "deliver 5",
        *["round 5", "round.land 5", "round 5", "deliver 5", "round.land 5", "close 5"],
        "deliver 5",
    ]


def test_who_comes_while_another_is_seated_is_in_the_same_pack() -> None:
    """However long seating takes: a burst goes in together, and nobody waits for company."""
    coming = [job(stream) for stream in range(2, 6)]

    def arrive(call: Call) -> None:
        if call.kind == "open" and coming:
            rig.submit(coming.pop(0))

    rig = Rig(before=arrive, lanes=4, passes=0, fills={"fill_pack": 64}, pack_rows=64)
    rig.submit(job(1))
    rig.run()
    rig.check()
    # The fifth has no lane until one is free.
    assert rig.fills()[:2] == ["P1+2+3+4", "R"]
    assert [call.streams for call in rig.calls if call.kind == "open"] == [
        (1,),
        (2,),
        (3,),
        (4,),
        (5,),
    ]


def test_a_cancel_that_comes_while_another_is_seated_is_looked_at_before_its_fill() -> None:
    def leave(call: Call) -> None:
        if call.kind == "open" and call.streams[0] == 2:
            rig.host.cancel(1)

    rig = Rig(before=leave, lanes=4)
    rig.submit(job(1), job(2))
    rig.run()
    assert rig.reader.ends[1].reason == "cancelled"
    assert rig.fills()[0] == "P2"


def test_tokens_of_a_round_leave_between_the_next_launch_and_its_landing() -> None:
    rig = Rig()
    rig.submit(job(1, most=8), job(2, most=8))
    rig.run()
    events = rig.events[rig.events.index("round 1 2") :]
    for place, event in enumerate(events[:-4]):
        if event == "deliver 1 2":
            assert events[place - 1] == "round 1 2"
            assert events[place + 1] == "round.land 1 2"
    assert events.count("deliver 1 2") == 7


@pytest.mark.parametrize("most", [1, 2])
def test_a_finished_streams_end_leaves_before_the_host_rests(most: int) -> None:
    """Of one that ends with its prompt's first token, and of one that ends in a round."""
    rig = Rig()
    rig.submit(job(1, most=most, draft=False))
    assert not rig.host.turn()
    rig.check()


def test_a_prompt_of_every_length_and_company_replies_as_alone() -> None:
    for drafts in (0, 3):
        rig = Rig(lanes=5, drafts=drafts, chunk_rows=32)
        rig.submit(
            *(job(stream, rows=stream, most=1 + stream % 9, logprobs=1) for stream in range(1, 71))
        )
        rig.run()
        rig.check()


def test_concurrent_drafted_and_alone_have_the_same_hashes_and_logprobs() -> None:
    runs = []
    for drafts, wrong_in, lanes in ((0, 5, 1), (0, 5, 8), (7, 5, 8), (7, 0, 8), (7, 1, 3)):
        rig = Rig(drafts=drafts, wrong_in=wrong_in, lanes=lanes)
        rig.submit(*(job(stream, rows=9, most=30, logprobs=3) for stream in range(1, 10)))
        rig.run()
        rig.check()
        hashes = {s: end.counts.token_sha256 for s, end in rig.reader.ends.items()}
        runs.append((hashes, rig.reader.logprobs))
    assert all(run == runs[0] for run in runs)


def test_a_job_that_wants_no_drafts_gets_none() -> None:
    rig = Rig(drafts=7)
    rig.submit(job(1, most=20, draft=False), job(2, most=20))
    rig.run()
    rig.check()
    counts = {stream: end.counts for stream, end in rig.reader.ends.items()}
    assert (counts[1].rounds, counts[1].drafted, counts[1].accepted) == (19, 0, 0)
    assert counts[2].rounds < 19
    assert counts[2].accepted == 19 - counts[2].rounds


@pytest.mark.parametrize("most", range(1, 8))
def test_no_more_drafts_are_asked_than_the_reply_can_use(most: int) -> None:
    rig = Rig(drafts=7, wrong_in=0)
    rig.submit(job(1, most=most))
    rig.run()
    rig.check()
    assert rig.calls[1].pieces[0].want == max(0, most - 2)
    wants = [call.windows[0].want for call in rig.calls if call.kind == "round"]
    assert wants == [max(0, most - 3)] * (most > 1)


def test_drafts_that_are_all_right_are_all_accepted() -> None:
    rig = Rig(drafts=3, wrong_in=0)
    rig.submit(job(1, most=21))
    rig.run()
    rig.check()
    counts = rig.reader.ends[1].counts
    assert (counts.rounds, counts.drafted, counts.accepted) == (5, 15, 15)


# -- where a reply ends ------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [0, 7])
@pytest.mark.parametrize("at", range(6))
def test_an_end_token_ends_the_reply_with_it(drafts: int, at: int) -> None:
    whole = solo(job(1, most=12))
    rig = Rig(drafts=drafts, wrong_in=0)
    rig.submit(job(1, most=12, end_tokens=frozenset({whole[at]})))
    rig.run()
    rig.check()
    first = whole.index(whole[at]) + 1
    assert rig.reader.tokens[1] == whole[:first]
    assert rig.reader.ends[1].reason == "end_token"


@pytest.mark.parametrize("drafts", [0, 7])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_stop_is_asked_token_by_token_even_inside_a_window(drafts: int, at: int) -> None:
    asked: list[tuple[int, ...]] = []

    def ends(tokens: Sequence[int]) -> bool:
        asked.append(tuple(tokens))
        return len(tokens) == at

    rig = Rig(drafts=drafts, wrong_in=0)
    made = job(1, most=12, ends=ends)
    rig.submit(made)
    rig.run()
    assert [len(tokens) for tokens in asked] == list(range(1, at + 1))
    rig.check()
    assert rig.reader.ends[1].reason == ("stop" if at < 12 else "length")


def test_end_token_comes_before_stop_and_stop_before_length() -> None:
    whole = solo(job(1, most=4))
    last = frozenset({whole[3]}) - frozenset(whole[:3])
    assert last
    rig = Rig()
    rig.submit(
        job(1, most=4, end_tokens=last, ends=lambda tokens: len(tokens) == 4),
        job(2, most=4, ends=lambda tokens: len(tokens) == 4),
        job(4, most=4),
    )
    rig.run()
    assert [rig.reader.ends[s].reason for s in (1, 2, 4)] == ["end_token", "stop", "length"]
    rig.check()


def test_tokens_after_an_end_are_dropped_before_anything_is_counted() -> None:
    rig = Rig(drafts=7, wrong_in=0)
    rig.submit(job(1, most=20, logprobs=1, ends=lambda tokens: len(tokens) == 4))
    rig.run()
    rig.check()
    counts = rig.reader.ends[1].counts
    assert (counts.tokens, counts.accepted, rig.host.stats().tokens) == (4, 3, 4)


def test_a_stop_that_raises_hurts_its_own_stream_alone() -> None:
    def ends(tokens: Sequence[int]) -> bool:
        if len(tokens) == 3:
            raise ValueError("no such state")
        return False

    rig = Rig(drafts=4)
    rig.submit(job(1, ends=ends), job(2), job(4))
    rig.run()
    reasons = [rig.reader.ends[stream].reason for stream in (1, 2, 4)]
    assert reasons == ["fault", "length", "length"]
    assert "no such state" in rig.reader.ends[1].message
    assert len(rig.reader.tokens[1]) == 3
    assert rig.engine.streams == {}
    assert rig.engine.slips == []


# -- receipts, figures, trace ------------------------------------------------------------------


def test_seconds_of_a_receipt_are_of_the_hosts_clock() -> None:
    costs = {"fill.land": 2.0, "round.land": 0.5}
    rig = Rig(lanes=1, cost=lambda call: costs.get(call.kind, 0.0))
    rig.submit(job(1, most=5), job(2, most=5))
    rig.run()
    first, second = (rig.reader.ends[stream].counts for stream in (1, 2))
    assert (first.queue_seconds, first.prefill_seconds, first.decode_seconds) == (0.0, 2.0, 2.0)
    assert second.queue_seconds == 4.0
    # Two fills, and the five rounds during which something waited or went in.
    assert rig.host.stats().rows_per_second == pytest.approx(8 / (2 * 2.0 + 5 * 0.5))


def test_the_trace_tells_every_forward_of_a_turn() -> None:
    turns: list[TurnTrace] = []
    rig = Rig(host={"trace": turns.append}, cost=lambda call: 1.0, drafts=2)
    rig.submit(job(1, rows=70, most=4), job(2, most=4))
    rig.run()
    rig.check()
    assert [turn.turn for turn in turns] == list(range(1, len(turns) + 1))
    first = turns[0]
    assert [len(forward.pieces) for forward in first.forwards] == [1, 1, 1, 0]
    assert [window.stream for window in first.forwards[3].windows] == [1, 2]
    assert all(forward.landed - forward.launched == 2.0 for forward in first.forwards)
    assert (first.waiting, first.filling) == (0, 0)
    committed = sum(sum(forward.committed) for turn in turns for forward in turn.forwards)
    assert committed >= 6
    stats = rig.host.stats()
    assert stats.turns == len(turns)
    assert stats.filled_rows == 74


def test_the_same_submissions_give_the_same_events() -> None:
    runs = []
    for _ in range(2):
        rig = Rig(lanes=3, drafts=3, fills={"fill_chunks": 1, "fill_many": True})
        rig.submit(*(job(stream, rows=stream * 37 % 300 + 1) for stream in range(1, 12)))
        rig.run()
        runs.append(rig.events)
    assert runs[0] == runs[1]


# -- what is refused at the door ---------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ()},
        {"most": 0},
        {"most": -1},
        {"rows": 60, "most": 5},
        {"prompt": (97,)},
        {"prompt": (-1,)},
    ],
)
def test_a_job_that_cannot_be_is_refused_and_takes_its_siblings_along(
    fields: dict[str, object],
) -> None:
    rig = Rig(context=64)
    with pytest.raises(RequestError) as caught:
        rig.host.submit([job(1), job(2, **fields)])
    assert caught.value.status == 400
    assert rig.host.stats().started == 0
    rig.submit(job(1, rows=60, most=4))
    rig.run()
    rig.check()


def test_a_landed_window_of_several_tokens_is_one_delivery() -> None:
    rig = Rig(drafts=7, wrong_in=0)
    rig.submit(job(1, most=17))
    rig.run()
    sizes = [len(delivery.tokens) for batch in rig.reader.batches for delivery in batch]
    assert sizes == [1, 8, 8]
    assert isinstance(rig.reader.batches[0][0], Delivery)


def test_the_reply_is_the_formula() -> None:
    made = job(2, rows=5, most=7)
    history = list(prompt_of(5, 2))
    for _ in range(7):
        history.append((7 * sum(history) + 3 * len(history)) % 97)
    assert solo(made) == history[5:]
    opening = Opening(stream=0, prompt=(1,), most=9, sampling=Sampling(temperature=1.0), seed=4)
    assert model.reply(opening, 9) != model.reply(Opening(stream=0, prompt=(1,), most=9), 9)


def goes_on(rig: Rig) -> list[list[bool]]:
    """By round, what each window says of its stream."""
    calls = [call for call in rig.calls if call.kind == "round"]
    return [[window.goes_on for window in call.windows] for call in calls]


def test_streams_go_on_until_their_last_window_while_no_prompt_could_go_in() -> None:
    rig = Rig(lanes=2)
    # The third one waits for a lane, which nobody can foresee to be free.
    rig.submit(job(1, most=4), job(2, most=5), job(4, most=3))
    rig.run()
    rig.check()
    assert goes_on(rig) == [[True, True]] * 2 + [[False, True]] * 2 + [[False]]


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        # A prompt that goes in piece by piece, and one that waits for room beside a free lane.
        ({"fills": {"fill_chunks": 1}, "chunk_rows": 64}, {"rows": 300}),
        ({"room_lanes": 1}, {}),
    ],
)
def test_a_prompt_that_goes_in_or_could_is_not_made_to_wait_for_a_round_ahead(
    options: dict[str, Any], fields: dict[str, Any]
) -> None:
    rig = Rig(lanes=2, **options)
    rig.submit(job(1, most=5), job(2, **fields))
    rig.run()
    rig.check()
    rounds = goes_on(rig)
    assert rounds[:4] == [[False]] * 4
    assert any(map(any, rounds[4:]))


@pytest.mark.parametrize(("lanes", "told"), [(2, True), (1, False)])
def test_the_engine_is_told_of_a_prompt_that_comes_beside_a_round_and_could_go_in(
    monkeypatch: pytest.MonkeyPatch, lanes: int, told: bool
) -> None:
    def arrive(call: Call) -> None:
        if call.kind == "round.land" and len(heard) == 1:
            rig.submit(job(2))

    rig, heard = Rig(lanes=lanes, before=arrive), list[bool]()
    launch = rig.engine.round

    class Asking:
        def __init__(self, windows: Sequence[Window]) -> None:
            self.flight = launch(windows)

        def land(self, waits: Callable[[], bool]) -> Sequence[Landed]:
            results = self.flight.land()
            heard.append(waits())
            return results

    monkeypatch.setattr(rig.engine, "round", Asking)
    rig.submit(job(1, most=5))
    rig.run()
    rig.check()
    assert heard[:3] == [False, told, False]


@pytest.mark.parametrize("fields", [{"forces": lambda tokens: ()}, {"draft": True}])
def test_a_stream_that_may_ask_more_does_not_say_that_it_goes_on(fields: dict[str, Any]) -> None:
    rig = Rig(lanes=2, drafts=2 if "draft" in fields else 0)
    rig.submit(job(1, most=20, draft=False), job(2, most=10, **{"draft": False, **fields}))
    rig.run()
    rig.check()
    rounds = goes_on(rig)
    assert not any(going[-1] for going in rounds if len(going) == 2)
    assert rounds[-2] == [True]
