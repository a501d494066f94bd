"""Who is admitted next: classes, ageing, memory that is short, and the queue's bounds."""

import time

import pytest

from tensorfold.backends.fake.options import Trouble
from tensorfold.core.errors import EngineFault, NoRoom, Refused, RequestError
from tensorfold.core.lane_host.host import HostOptions
from tests.null.hosting import Rig, Shelf, job, prompt_of


def opened(rig: Rig) -> list[int]:
    """The streams in the order in which they were admitted."""
    order = [call.streams[0] for call in rig.calls if call.kind == "fill"]
    return list(dict.fromkeys(order))


# -- classes -----------------------------------------------------------------------------------


def test_foreground_before_background_first_come_first_served_inside_each() -> None:
    rig = Rig(lanes=1)
    rig.submit(job(1, background=True), job(2, background=True), job(4), job(5))
    rig.run()
    rig.check()
    assert opened(rig) == [4, 5, 1, 2]


def test_background_ages_into_the_foreground() -> None:
    rig = Rig(lanes=1, cost=lambda call: 10.0 if call.kind == "fill.land" else 0.0)
    rig.submit(job(1, most=2), job(2, most=2, background=True))
    rig.host.turn()
    for stream in range(4, 16):  # one comes each 10 s, as fast as one goes
        rig.submit(job(stream, most=2))
        rig.host.turn()
    rig.run()
    rig.check()
    order = opened(rig)
    # Those that came before it was 60 s old go first, those that came later go after it.
    assert order.index(2) == 7
    assert [stream for stream in order if stream != 2] == [1, *range(4, 16)]


def test_with_no_ageing_time_the_classes_are_one() -> None:
    rig = Rig(lanes=1, options=HostOptions(background_after=0.0))
    for stream in (1, 2, 4):
        rig.submit(job(stream, background=stream == 2))
        rig.clock.wait(1.0)
    rig.run()
    rig.check()
    assert opened(rig) == [1, 2, 4]


# -- memory that is short ----------------------------------------------------------------------


def test_one_that_waits_for_memory_is_passed_by_at_most_skips_later_ones() -> None:
    for skips in (0, 1, 3):
        rig = Rig(lanes=4, room_tokens=110, options=HostOptions(skips=skips))
        rig.submit(job(1, rows=40, most=20), job(2, rows=60, most=20))
        rig.submit(*(job(stream, most=4) for stream in range(4, 16)))
        rig.run()
        rig.check()
        order = opened(rig)
        assert order.index(2) - 1 == skips
        assert {end.reason for end in rig.reader.ends.values()} == {"length"}


def test_small_ones_go_on_passing_until_the_head_fits() -> None:
    rig = Rig(lanes=8, room_tokens=110, options=HostOptions(skips=100))
    rig.submit(job(1, rows=40, most=20), job(2, rows=60, most=40), job(4, most=2), job(5, most=2))
    rig.run()
    rig.check()
    assert opened(rig) == [1, 4, 5, 2]


def test_only_a_freed_storage_makes_the_host_ask_again() -> None:
    rig = Rig(lanes=4, room_lanes=1)
    rig.submit(*(job(stream, most=30) for stream in range(1, 5)))
    rig.run()
    rig.check()
    assert sum(call.kind == "open" for call in rig.calls) <= 4 + 4 + 3 + 2


def test_a_kept_state_that_makes_way_is_a_freed_storage_too() -> None:
    shelf = Shelf(32, 96, most=1)
    rig = Rig(lanes=4, room_tokens=270, fills={"fill_chunks": 1}, host={"keeper": shelf})
    rig.submit(job(1, rows=100, most=1))
    rig.run()
    # Beside stream 2 and the 96 rows kept there is no room for stream 4; beside 32 rows there is.
    rig.submit(job(2, rows=130, most=40), job(4, rows=10, most=40))
    rig.run()
    rig.check()
    assert rig.events.count("open 4") == 2
    assert rig.events.index("fill 4") < rig.events.index("close 2")


def test_a_prompt_that_tries_for_room_again_and_again_counts_its_kept_rows_once() -> None:
    shelf = Shelf(64)
    rig = Rig(lanes=6, room_tokens=320, fills={"fill_chunks": 1}, host={"keeper": shelf})
    rig.submit(job(1, rows=100, most=2))
    rig.run()
    again = [job(stream, prompt=prompt_of(100, 1), most=9 * stream) for stream in range(2, 7)]
    rig.submit(*again)
    rig.run()
    rig.check()
    tries = [call.streams[0] for call in rig.calls if call.kind == "open"]
    assert tries.count(6) > 2
    counts = [rig.reader.ends[made.stream].counts for made in again]
    assert [count.cached for count in counts] == [64] * 5
    # Every row of a prompt was kept or went in, and none of them twice.
    assert rig.host.stats().filled_rows == 100 + 5 * (100 - 64)


def test_fewer_lanes_than_asked_still_serve_everyone() -> None:
    rig = Rig(lanes=8, room_lanes=3)
    rig.submit(*(job(stream) for stream in range(1, 20)))
    rig.run()
    rig.check()
    assert opened(rig) == list(range(1, 20))


def test_what_never_fits_is_refused_in_words_and_holds_nobody_up() -> None:
    rig = Rig(room_tokens=100)
    rig.submit(job(1, rows=90, most=20), job(2))
    rig.run()
    rig.check()
    assert rig.reader.ends[1].reason == "refused"
    assert "never fit" in rig.reader.ends[1].message
    assert rig.reader.ends[2].reason == "length"
    assert rig.host.stats().failed == 1


def test_with_nothing_open_kept_states_are_dropped_oldest_first_until_the_head_fits() -> None:
    shelf = Shelf(32, 48)
    rig = Rig(room_tokens=200, host={"keeper": shelf})
    rig.submit(job(1, rows=50, most=4))
    rig.run()
    rig.submit(job(2, rows=50, most=4))
    rig.run()
    assert [len(rows) for rows in rig.engine.kept.values()] == [32, 48, 32, 48]
    rig.submit(job(4, rows=60, most=20))
    rig.run()
    rig.check()
    kept = list(rig.engine.kept.values())
    assert kept == [prompt_of(rows, stream) for stream in (2, 4) for rows in (32, 48)]


def test_with_nothing_open_and_nothing_kept_no_room_is_a_refusal() -> None:
    trouble = Trouble(kind="open", stream=1, error=Refused("too much"))
    rig = Rig(troubles=(trouble,), host={"keeper": Shelf(16)}, room_tokens=100)
    rig.submit(job(2, rows=40))
    rig.run()
    rig.submit(job(1))
    rig.run()
    assert rig.reader.ends[1].message == "too much"
    # Room for nobody at all: the host must not sleep on it.
    rig = Rig(troubles=(Trouble(kind="open", error=NoRoom("full for ever")),))
    rig.submit(job(1), job(2))
    rig.run()
    assert [rig.reader.ends[stream].reason for stream in (1, 2)] == ["refused"] * 2


def test_an_opening_that_did_nothing_ends_its_stream_and_no_more() -> None:
    rig = Rig(troubles=(Trouble(kind="open", stream=2, error=EngineFault("no")),))
    rig.submit(job(1), job(2), job(4))
    rig.run()
    rig.check()
    assert rig.reader.ends[2].reason == "fault"
    assert "close 2" not in rig.events


# -- bounds ------------------------------------------------------------------------------------


def refusal(rig: Rig, *jobs: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        rig.host.submit(jobs)  # type: ignore[arg-type]
    return caught.value


def test_a_full_queue_answers_429_all_or_none() -> None:
    rig = Rig(lanes=1, options=HostOptions(queue_requests=2))
    rig.submit(job(1))
    rig.host.turn()
    rig.submit(job(2))
    error = refusal(rig, job(4), job(5))
    assert (error.status, error.code) == (429, "queue_full")
    assert rig.host.stats().waiting == 1
    rig.submit(job(4))
    assert refusal(rig, job(5)).status == 429
    rig.run()
    rig.check()
    rig.submit(job(5))
    rig.run()
    rig.check()


def test_rows_that_wait_are_bounded_too() -> None:
    rig = Rig(lanes=1, options=HostOptions(queue_rows=100))
    rig.submit(job(1), job(2, rows=90))
    assert refusal(rig, job(4, rows=10)).status == 429
    rig.submit(job(4, rows=6))
    rig.run()
    rig.check()


def test_with_nothing_waiting_one_submission_always_may() -> None:
    rig = Rig(lanes=1, options=HostOptions(queue_rows=10, queue_requests=1))
    rig.submit(*(job(stream, rows=40) for stream in range(1, 5)))
    assert refusal(rig, job(5)).status == 429
    rig.run()
    rig.check()


def test_retry_after_is_the_rows_waiting_over_the_measured_speed() -> None:
    rig = Rig(
        lanes=1,
        options=HostOptions(queue_rows=1000),
        cost=lambda call: 5.0 if call.kind == "fill.land" else 0.0,
    )
    rig.submit(job(1, rows=50, most=1))
    assert refusal(rig, job(9, rows=1000)).retry_after == 1  # nothing measured yet
    rig.run()
    assert rig.host.stats().rows_per_second == 10.0
    rig.submit(job(2, rows=600, most=1))
    assert refusal(rig, job(9, rows=500)).retry_after == 60
    rig.submit(job(4, rows=205, most=1))
    assert refusal(rig, job(9, rows=500)).retry_after == 81


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("rows", [(4,), (60,), (5, 200, 30)])
def test_retry_after_is_about_when_those_that_wait_have_gone(
    lanes: int, rows: tuple[int, ...]
) -> None:
    rig = Rig(
        lanes=lanes,
        options=HostOptions(queue_requests=120),
        cost=lambda call: 0.5 if call.kind.endswith(".land") else 0.0,
    )
    rig.submit(*(job(stream, rows[stream % len(rows)]) for stream in range(1, 111)))
    while rig.host.stats().waiting > 10:
        rig.host.turn()
    rig.submit(
        *(job(111 + more, rows[more % len(rows)], background=more % 2 > 0) for more in range(110))
    )
    told = refusal(rig, job(300)).retry_after
    assert told is not None
    began = rig.clock()
    while rig.host.stats().waiting:
        rig.host.turn()
    took = rig.clock() - began
    assert took / 1.5 < told < took * 1.5
    rig.submit(job(300))
    rig.run()
    rig.check()


def test_a_turn_costs_no_more_with_ten_thousand_waiting() -> None:
    spent = []
    for waiting in (10, 10_000):
        rig = Rig(context=100_000, options=HostOptions(queue_rows=1 << 40, queue_requests=20_000))
        rig.submit(*(job(stream, most=1000) for stream in range(8)))
        rig.host.turn()
        rig.submit(
            *(
                job(8 + stream, prompt=(1,), background=bool(stream % 2))
                for stream in range(waiting)
            )
        )
        rig.host.turn()
        times = []
        for _ in range(60):
            began = time.perf_counter()
            rig.host.turn()
            times.append(time.perf_counter() - began)
        spent.append(min(times))
    assert spent[1] < 3 * spent[0]
