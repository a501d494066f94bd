"""What rounds cost is timed at the start, cheaply, and leaves no trace in the engine."""

from __future__ import annotations

import itertools
import json

import pytest

from tensorfold.core.engine.round_costs import between, doubled, timed
from tensorfold.families.glm53.plugin import FAMILY
from tests.cpu.driving import CKPT, Asked, alone, opened, some_tokens


def test_an_engine_that_may_draft_knows_what_rounds_of_all_sizes_cost() -> None:
    engine = opened(drafts=2)
    info = engine.info
    assert [rows for rows, _ in info.round_costs] == list(range(engine.tile, 65, engine.tile))
    costs = [cost for _, cost in info.round_costs]
    assert costs[0] > 0
    assert costs == sorted(costs)
    assert [streams for streams, _ in info.draft_costs] == [1, 8]
    assert all(cost >= 0 for _, cost in info.draft_costs)
    assert opened(copies=True).info.draft_costs == ()
    assert opened(copies=True).info.round_costs != ()
    assert opened().info.round_costs == ()


def test_timing_rounds_leaves_nothing_behind() -> None:
    asked = Asked(prompt=tuple(some_tokens(70)), most=12)
    fresh, timed_one = opened(drafts=0), opened(drafts=2)
    assert not timed_one.streams
    assert (timed_one.memory().used, timed_one.memory().peak) == (0, 0)
    assert alone(timed_one, asked).proof() == alone(fresh, asked).proof()


@pytest.mark.parametrize("sizes", [{"lanes": 1}, {"lanes": 3, "window_rows": 1}, {"context": 64}])
def test_small_engines_are_timed_as_far_as_they_go(sizes: dict[str, int]) -> None:
    engine = opened(copies=True, **({"chunk_rows": 64} | sizes))
    info = engine.info
    assert not engine.streams
    assert all(rows <= info.round_rows for rows, _ in info.round_costs)
    assert info.round_costs[-1][0] == info.round_rows


def test_by_default_a_checkpoint_with_a_head_drafts_as_suits_it() -> None:
    assert opened(drafts=-1).info.drafts == 2
    assert opened(drafts=-1, window_rows=2).info.drafts == 1
    assert opened(drafts=-1, window_rows=1).info.drafts == 0
    text = json.loads((CKPT / "config.json").read_text())
    assert FAMILY.drafts(FAMILY.config(text)) == 2
    text["text_config"]["num_nextn_predict_layers"] = 0
    assert FAMILY.drafts(FAMILY.config(text)) == 0


def test_a_cost_is_the_least_of_a_few_rounds() -> None:
    engine = opened()
    ticks = itertools.cycle([0.0, 9.0, 10.0, 12.0, 20.0, 27.0])
    rounds, drafts = timed(engine, [8, 16], lambda: next(ticks))
    assert rounds == ((8, 2000.0), (16, 2000.0))
    assert drafts == ()


def test_what_was_not_timed_lies_on_a_straight_line_and_never_falls() -> None:
    assert doubled([8, 16, 24, 32, 40, 48]) == [8, 16, 32, 48]
    assert doubled([5]) == [5]
    points = [(8, 4.0), (16, 3.0), (32, 8.0)]
    assert [between(points, rows) for rows in (4, 8, 12, 16, 24, 32, 40)] == [
        4.0,
        4.0,
        4.0,
        4.0,
        6.0,
        8.0,
        8.0,
    ]
