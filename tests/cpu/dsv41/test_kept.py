"""Kept states of a family whose prompts may be cut anywhere: inside a page, inside a pair."""

from __future__ import annotations

import pytest

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling
from tests.cpu.driving import Asked, alone, begin, fill_all, same_state, some_tokens, step
from tests.cpu.dsv41.engines import state_after


def asked_of(length: int, *, seed: int = 2) -> Asked:
    sampling = Sampling(temperature=1.0, top_p=0.9)
    prompt = tuple(some_tokens(length, seed=seed))
    return Asked(prompt=prompt, most=6, sampling=sampling, seed=12)


def test_a_prompt_resumed_at_every_mark_equals_a_fresh_one(engine: TorchEngine) -> None:
    asked = asked_of(97)
    wanted = alone(engine, asked).proof()
    fresh = begin(engine, 5, asked)
    fill_all(engine, fresh)
    state = state_after(engine, engine.streams[5].seat, 97)
    marks = tuple(range(1, 97))
    first = begin(engine, 1, asked, marks=marks)
    fill_all(engine, first, marks)
    assert [saved.rows for saved in first.saved] == list(marks)
    engine.close(1)
    for saved in first.saved:
        told = begin(engine, 2, asked, resume=saved)
        assert (told.cached, told.lost) == (saved.rows, None)
        fill_all(engine, told)
        assert same_state(state_after(engine, engine.streams[2].seat, 97), state), saved.rows
        while not told.done:
            step(engine, [told])
        assert told.proof() == wanted, saved.rows
        engine.close(2)


@pytest.mark.parametrize("mark", [1, 2, 63, 64, 65, 90])
def test_streams_that_resume_from_one_state_do_not_touch_it_nor_each_other(
    engine: TorchEngine, mark: int
) -> None:
    base = asked_of(120)
    others = [(*base.prompt[:mark], *some_tokens(40, seed=n)) for n in (3, 4)]
    orders = [base, *(Asked(prompt=other, most=9) for other in others)]
    wanted = [alone(engine, order).proof() for order in orders]
    first = begin(engine, 0, base, marks=(mark,))
    fill_all(engine, first, (mark,))
    tolds = [first, *(begin(engine, n, orders[n], resume=first.saved[0]) for n in (1, 2))]
    fill_all(engine, tolds[1])
    step(engine, [tolds[0], tolds[1]])
    fill_all(engine, tolds[2])
    while live := [told for told in tolds if not told.done]:
        step(engine, live)
    assert [told.proof() for told in tolds] == wanted


def test_what_a_kept_state_takes_is_counted_and_given_back(engine: TorchEngine) -> None:
    spec = engine.storage.spec
    first = begin(engine, 1, asked_of(100), marks=(64, 71))
    fill_all(engine, first, (64, 71))
    engine.close(1)
    rows = 7 * (64 + 64) + 3 * (64 + 64)
    assert first.saved[1].bytes - first.saved[0].bytes == 4 * rows
    used = spec.bytes_per_page() + 2 * spec.bytes_per_lane() + 4 * rows
    assert engine.memory().used == used
    for saved in first.saved:
        engine.drop(saved)
    assert engine.memory().used == 0
    told = begin(engine, 2, asked_of(100), resume=first.saved[0])
    assert told.cached == 0
    assert told.lost is not None
