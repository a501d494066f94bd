"""Steps on a CUDA stream: a captured one replays with other words, and reads only what it ran."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tensorfold.core.engine.graphs import Queued
from tensorfold.core.engine.packing import Powers, Shape
from tensorfold.core.engine.runner import Ready, Wait
from tensorfold.core.engine.sampling import Reach

DEVICE = torch.device("cuda", 0)


def shape_of(rows: int) -> Shape:
    return Shape(rows=rows, drawn=rows, streams=1, window=1, width=64, reach=Reach(0, 0))


def counting(state: Tensor, runs: list[int]) -> Callable[[Tensor], Tensor]:
    """A step that keeps a sum of all words it saw in `state`; `runs` grows with every call."""

    def step(words: Tensor) -> Tensor:
        runs.append(len(words))
        state.add_(words.sum())
        return torch.cat([words * 2, state])

    return step


@pytest.mark.parametrize("captured", [True, False])
def test_steps_of_all_sizes_give_what_was_asked_in_order(captured: bool) -> None:
    buckets = Powers(tile=1, most_rows=8, most_window=4)
    runner = Queued(DEVICE, buckets, captured=captured)
    state = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    runs: list[int] = []
    step = counting(state, runs)
    total = 0
    with torch.inference_mode():
        for number in range(40):
            size = (3, 500, 3, 7)[number % 4]
            words = np.arange(size) + number
            asked = words.copy()
            wait = runner.run(
                words, step, shape_of(size), lambda size=size: np.zeros(size, np.int64)
            )
            total += int(asked.sum())
            found = wait()
            # It was waited for: the words are the caller's again.
            words[:] = -1
            assert found[:-1].tolist() == (asked * 2).tolist()
            assert found[-1] == total
    # Captured, a size is run twice to try it and once to capture it, and never again.
    assert len(runs) == (9 if captured else 40)


def test_a_prompts_shape_is_captured_when_it_comes_again() -> None:
    runner = Queued(DEVICE, Powers(tile=1, most_rows=8, most_window=4), captured=True)
    state = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    runs: list[int] = []
    step = counting(state, runs)
    prompt = shape_of(5)._replace(window=0)
    counts = []
    with torch.inference_mode():
        for number in range(4):
            words = np.arange(5) + number
            found = runner.run(words, step, prompt, lambda: np.zeros(5, np.int64))()
            assert found[:-1].tolist() == (words * 2).tolist()
            counts.append(len(runs))
    assert state.item() == sum(10 + 5 * number for number in range(4))
    # It is run as it comes, then tried once more and captured, and from there on replayed.
    assert counts == [1, 3, 3, 3]


def test_a_step_without_a_shape_is_run_and_not_captured() -> None:
    runner = Queued(DEVICE, Powers(tile=1, most_rows=8, most_window=4), captured=True)
    runs: list[int] = []
    step = counting(torch.zeros(1, dtype=torch.int64, device=DEVICE), runs)
    with torch.inference_mode():
        for _ in range(3):
            words = np.ones(5, np.int64)
            assert (
                runner.run(words, step, None, lambda: np.zeros(5, np.int64))()[:5].tolist()
                == [2] * 5
            )
    assert len(runs) == 3
    assert not runner.graphs


def test_a_replay_alone_takes_the_words_there_and_back() -> None:
    """What runs between two rounds is one call: no copy is enqueued beside a captured step."""
    runner = Queued(DEVICE, Powers(tile=1, most_rows=8, most_window=4), captured=True)
    step = counting(torch.zeros(1, dtype=torch.int64, device=DEVICE), [])
    words = np.arange(5)
    first = runner.run(words, step, shape_of(5), lambda: np.zeros(5, np.int64))()
    assert first.tolist() == [0, 2, 4, 6, 8, 10]
    held = runner.graphs[shape_of(5)]
    held.given[:] = 7
    held.graph.replay()
    torch.cuda.synchronize()
    assert held.wait().tolist() == [14, 14, 14, 14, 14, 45]


def test_what_a_captured_step_gives_lasts_while_others_run_behind_it() -> None:
    runner = Queued(DEVICE, Powers(tile=1, most_rows=8, most_window=4), captured=True)
    step = counting(torch.zeros(1, dtype=torch.int64, device=DEVICE), [])

    def run(count: int, shape: Shape | None) -> Wait:
        words = np.arange(count) + 1
        return runner.run(words, step, shape, lambda: np.zeros(count, np.int64))

    def ready() -> Ready:
        found = runner.ready(given, step, shape_of(5), lambda: np.zeros(5, np.int64))
        assert found is not None
        return found

    given = np.zeros(5, np.int64)

    with torch.inference_mode():
        for _ in range(3):
            go, given[:] = ready(), np.arange(5) + 1
            total = int(step(torch.zeros(1, dtype=torch.int64, device=DEVICE))[-1])
            ahead, behind, other = go(), run(300, None), run(3, shape_of(3))
            assert other().tolist() == [2, 4, 6, total + 15 + 45150 + 6]
            assert behind()[-1] == total + 15 + 45150
            assert ahead().tolist() == [2, 4, 6, 8, 10, total + 15]


def test_what_is_forgotten_is_captured_again() -> None:
    runner = Queued(DEVICE, Powers(tile=1, most_rows=8, most_window=4), captured=True)
    words = np.arange(3)
    for factor in (2, 5):

        def step(words: Tensor, factor: int = factor) -> Tensor:
            return words * factor

        for _ in range(2):
            wait = runner.run(words, step, shape_of(3), lambda: np.zeros(3, np.int64))
            assert wait().tolist() == [0, factor, 2 * factor]
        runner.forget()
