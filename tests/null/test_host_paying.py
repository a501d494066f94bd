"""Drafting pays or is given up, and is looked at again: in virtual time, over the fake engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tensorfold.backends.fake.options import Call
from tensorfold.core.engine_api import Info
from tensorfold.core.lane_host.asking import LEAST_REST, MOST_REST, PROBE
from tensorfold.core.lane_host.costs import Costs
from tests.null.drafters import Drafter, knowing, long_words, mistaken
from tests.null.hosting import Rig, job
from tests.null.test_host_rounds import info

TABLE = tuple((rows, 6.0 + rows / 8) for rows in range(8, 65, 8))
CHEAP, DEAR = ((1, 1.0), (8, 1.5)), ((1, 30.0), (8, 40.0))
TOKENS = 1500


def seconds(
    table: tuple[tuple[int, float], ...],
    drafting: tuple[tuple[int, float], ...],
    factor: float = 1.0,
) -> Callable[[Call], float]:
    """What the engine really takes: by the tables, times a factor for what comes of drafting."""
    costs = Costs(replace(info(64, 8), lanes=8, round_costs=table, draft_costs=drafting))

    def cost(call: Call) -> float:
        if call.kind != "round.land":
            return 0.0
        rows = sum(len(window.tokens) for window in call.windows)
        asking = sum(window.want > 0 for window in call.windows)
        return (costs.rows[rows] + factor * costs.drafting[asking]) / 1000

    return cost


def taken(live: int, drafting: Any, *, real: float = 1.0, **fake: Any) -> tuple[float, Rig]:
    """Seconds of as many replies at once as are live."""
    rig = Rig(
        lanes=8,
        window_rows=8,
        round_costs=TABLE,
        draft_costs=drafting,
        cost=seconds(TABLE, drafting, real),
        **fake,
    )
    rig.submit(*(job(stream, most=TOKENS) for stream in range(1, live + 1)))
    rig.run()
    rig.check()
    return rig.clock(), rig


def asked(rig: Rig) -> list[bool]:
    """Round by round, whether anyone was asked for drafts."""
    rounds = [call for call in rig.calls if call.kind == "round"]
    return [any(window.want for window in call.windows) for call in rounds]


@pytest.mark.parametrize("live", [1, 3, 8])
@pytest.mark.parametrize("drafting", [CHEAP, DEAR], ids=["cheap", "dear"])
@pytest.mark.parametrize("wrong_in", [0, 2, 1])
@pytest.mark.parametrize("real", [1.0, 3.0], ids=["as timed", "dearer"])
def test_a_drafted_reply_is_never_slower_than_an_undrafted_one(
    live: int, drafting: Any, wrong_in: int, real: float
) -> None:
    plain, _ = taken(live, drafting)
    with_drafts, rig = taken(live, drafting, real=real, drafts=2, wrong_in=wrong_in)
    assert with_drafts <= 1.02 * plain
    if wrong_in == 0 and drafting == CHEAP:
        assert with_drafts < 0.75 * plain
        assert sum(asked(rig)) > 0.97 * len(asked(rig)) - 3


def test_drafting_that_does_not_pay_is_given_up_and_looked_at_ever_more_seldom() -> None:
    _, rig = taken(8, ((1, 3.0), (8, 3.0)), drafts=2, wrong_in=2)
    rounds = asked(rig)
    # One round without is a look at what the rest takes; three in a row are a choice.
    first = next(n for n in range(len(rounds)) if not any(rounds[n : n + 3]))
    assert first <= 8 * PROBE
    looks = [place for place in range(first, len(rounds)) if rounds[place] > rounds[place - 1]]
    rests = [later - earlier for earlier, later in pairwise(looks)]
    assert looks[0] - first >= LEAST_REST - 2
    assert all(later >= earlier for earlier, later in pairwise(rests))
    assert sum(rounds[first:]) <= PROBE * len(looks) + PROBE
    assert len(looks) >= 2
    assert PROBE * len(looks) < 0.05 * len(rounds)


def test_drafts_that_take_many_times_a_round_are_not_even_looked_at() -> None:
    _, rig = taken(8, DEAR, drafts=2, wrong_in=0)
    assert sum(asked(rig)) <= 1


def test_drafting_that_begins_to_pay_is_taken_up_again() -> None:
    rig = Rig(
        lanes=1,
        window_rows=8,
        drafts=3,
        wrong_in=1,
        round_costs=TABLE,
        draft_costs=CHEAP,
        cost=seconds(TABLE, CHEAP),
    )
    rig.submit(job(1, most=3000))
    for _ in range(700):
        rig.host.turn()
    assert sum(asked(rig)[-40:]) <= PROBE
    rig.engine.options = replace(rig.engine.options, wrong_in=0)
    for _ in range(MOST_REST):
        rig.host.turn()
        if sum(asked(rig)[-40:]) > 38:
            break
    assert sum(asked(rig)[-40:]) > 38
    assert len(asked(rig)) < 700 + 2 * 700
    rig.run()
    rig.check()


@pytest.mark.parametrize("round_rows", [3, 5, 8, 12])
@pytest.mark.parametrize("drafting", [CHEAP, DEAR], ids=["cheap", "dear"])
@pytest.mark.parametrize("wish", [{}, {"forces": long_words}], ids=["free", "forced"])
def test_rounds_that_hold_neither_all_streams_nor_what_is_forced_are_weighed_too(
    round_rows: int, drafting: Any, wish: dict[str, Any]
) -> None:
    table = tuple((rows, 1.0 + rows) for rows in range(1, round_rows + 1))
    rig = Rig(
        lanes=8,
        window_rows=3,
        round_rows=round_rows,
        round_costs=table,
        draft_costs=drafting,
        drafts=2,
    )
    rig.submit(*(job(stream, most=40, **wish) for stream in range(1, 9)))
    rig.run()
    rig.check()
    assert {end.reason for end in rig.reader.ends.values()} == {"length"}


def test_guesses_of_a_drafter_that_is_wrong_get_no_rows_that_cost() -> None:
    table = tuple((rows, 5.0 * rows) for rows in range(1, 65))
    for wrong, most in ((True, 0.05), (False, 1.0)):
        drafter = Drafter("d", lambda context, most: ((), ()))
        rig = Rig(
            lanes=1,
            round_costs=table,
            cost=seconds(table, ()),
            host={"drafters": [drafter]},
        )
        right = knowing(rig.jobs)
        drafter.ask = mistaken(right, 3) if wrong else right
        rig.submit(job(1, most=400))
        rig.run()
        rig.check()
        # A row for each token is as dear as a round for each: only sure ones come for nothing.
        assert rig.host.stats().drafted["d"] <= most * 400


def test_costs_follow_what_rounds_really_take_and_stay_within_reason() -> None:
    costs = Costs(costly())
    assert (costs.rows[1], costs.rows[8], costs.rows[9], costs.rows[64]) == (7, 7, 8, 14)
    assert (costs.drafting[0], costs.drafting[1], costs.drafting[8]) == (0, 1, 1.5)
    # A machine that is slower as a whole changes nothing but the pace.
    for _ in range(300):
        for rows in (4, 12, 20):
            costs.measured(rows, 0, 3 * costs.timed[rows] / 1000)
    assert 2.5 < costs.pace < 3.3
    assert all(abs(costs.rows[rows] / costs.timed[rows] - 1) < 0.15 for rows in (4, 12, 20, 40))
    # One kind of round that is dearer than timed is known by its own, its steps stay in order.
    for _ in range(300):
        costs.measured(4, 0, 3 * costs.timed[4] / 1000)
        costs.measured(12, 0, 6 * costs.timed[12] / 1000)
    assert costs.rows[9] == costs.rows[16] > 1.3 * costs.rows[8]
    assert costs.rows == sorted(costs.rows)
    for _ in range(3000):
        costs.measured(40, 0, 1e6)
        costs.measured(8, 0, 0.007)
        costs.measured(8, 5, 1e6)
        costs.measured(8, 5, 0.0)
    assert costs.rows == sorted(costs.rows)
    assert costs.rows[40] <= 3 * costs.timed[40]


def test_what_was_timed_of_drafting_is_soon_forgotten_if_it_was_wrong() -> None:
    costs = Costs(replace(costly(), draft_costs=((1, 20.0),)))
    for _ in range(3):
        costs.measured(1, 0, costs.timed[1] / 1000)
        for _ in range(2):
            costs.measured(3, 1, (costs.timed[3] + 1.5) / 1000)
    known = costs.drafting[1]
    # A machine that gets slower while everyone is asked makes no drafting dearer.
    for _ in range(60):
        costs.measured(3, 1, 3 * (costs.timed[3] + 1.5) / 1000)
    assert abs(costs.drafting[1] - known) < 3
    assert 1.0 < costs.drafting[1] < 2.0


def costly() -> Info:
    return replace(info(64, 8), lanes=8, round_costs=TABLE, draft_costs=CHEAP)


def test_an_engine_that_timed_nothing_is_asked_always_and_its_rows_are_free() -> None:
    rig = Rig(lanes=2, window_rows=8, drafts=3, wrong_in=1, cost=lambda call: 1.0)
    rig.submit(job(1, most=200), job(2, most=200))
    rig.run()
    rig.check()
    assert all(asked(rig)[:-4])
    assert rig.host.stats().round_rows > 3.5 * 200


@pytest.mark.parametrize(("draft", "learned"), [(False, [0, 1, 3, 4, 5]), (True, [0, 1, 2, 3, 4])])
def test_a_round_that_may_have_run_before_a_fill_is_no_measure_of_what_rounds_take(
    monkeypatch: pytest.MonkeyPatch, draft: bool, learned: list[int]
) -> None:
    def arrive(call: Call) -> None:
        if call.kind == "round.land" and call.index == 1:
            rig.submit(job(2, rows=200, most=1))

    rig = Rig(lanes=2, before=arrive, fills={"fill_chunks": 1}, chunk_rows=64, drafts=1)
    found: list[int] = []
    monkeypatch.setattr(
        rig.host._drafting, "measured", lambda *_: found.append(rig.host.stats().rounds - 1)
    )
    rig.submit(job(1, most=30, draft=draft))
    rig.run()
    rig.check()
    assert found[:5] == learned
