"""Ranks whose rounds run ahead: replies of one rank that asks for each, the same work in the same
order on all, and an end in time whatever becomes of one."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tensorfold.core.backend_api import Place
from tensorfold.core.engine import sampling
from tensorfold.core.engine.index_split import IndexSplit
from tensorfold.core.engine.packing import Shape
from tensorfold.core.engine.ranks import follow, following, leading
from tensorfold.core.engine.runner import Run, Wait
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import EngineLost
from tests.cpu.driving import opened
from tests.cpu.ranks.running import on_ranks, opened_at
from tests.cpu.steps import rebuilt
from tests.cpu.test_running_ahead import Both, Shared, acted, after, begun, spoiled

SIZES = {"lanes": 6, "context": 256, "drafts": 2}
# Of a script: faults are few.
STEPS = {"sure": 200, "unsure": 200, "faulty": 300, "sure again": 200}
# Within which all ranks have ended, once one is gone.
END_SECONDS = 10
pytestmark = pytest.mark.timeout(240)


class Later(Shared):
    """A device with a queue: a thread of its own runs steps in order, and what they write is read
    by whoever waits. `told` is what was launched, in order."""

    def __init__(self, engine: TorchEngine) -> None:
        super().__init__(engine)
        self.queue = ThreadPoolExecutor(1)
        self.told: list[tuple[Any, bytes]] = []
        self.launching: Callable[[], None] = lambda: None

    def behind(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """What else the device does in order."""

        def run(*given: Any) -> Any:
            self.queue.submit(lambda: None).result()
            return call(*given)

        return run

    def run(
        self, words: np.ndarray, step: Run, shape: Shape | None, idle: Callable[[], np.ndarray]
    ) -> Wait:
        self.launching()
        given = torch.from_numpy(words.copy())
        self.told.append((shape, given.numpy().tobytes()))
        self.runs += 1
        own = self.runs
        done = self.queue.submit(self.work, given, step, shape)

        def wait() -> np.ndarray:
            assert own not in self.waited, "waited for twice"
            self.waited.add(own)
            return done.result()

        return wait

    @torch.inference_mode()
    def work(self, words: Tensor, step: Run, shape: Shape | None) -> np.ndarray:
        out = step(words).numpy()
        if shape is None:
            return out
        held = self.words.setdefault(shape, np.empty_like(out))
        held[:] = out
        return held


def ranked(place: Place | None) -> TorchEngine:
    engine = opened_at(place, **SIZES)
    runner = Later(engine)
    again = rebuilt(engine, runner=runner)
    again.group = engine.group
    again.open = runner.behind(again.open)  # type: ignore[method-assign]
    again.close = runner.behind(again.close)  # type: ignore[method-assign]
    return again


def runner_of(engine: TorchEngine) -> Later:
    assert isinstance(engine.runner, Later)
    return engine.runner


class Played(NamedTuple):
    """What a rank launched, what rank 0 saw, and how many results it held at the end."""

    told: list[tuple[Any, bytes]]
    seen: Counter[str]
    faults: int = 0
    redone: int = 0
    held: int = 0


def played(place: Place, script: str) -> Played:
    engine = ranked(place)
    if script == "unsure":
        for name, size in (("HEAD", 2), ("OPEN_HEAD", 2), ("CANDIDATES", 1)):
            setattr(sampling, name, size)
    with ExitStack() as stack:
        if place.share.rank:
            if script == "faulty":
                stack.enter_context(spoiled([engine]))
            lost: list[str] = []
            link = following(engine, lost.append)
            follow(engine, link)
            assert lost == []
            return Played(runner_of(engine).told, Counter(), redone=engine.redone)
        plain = opened(**SIZES)
        if script == "faulty":
            stack.enter_context(spoiled([engine, plain]))
        first = leading(engine, IndexSplit())
        try:
            choice = random.Random(script)
            both = Both((first, plain), choice)
            seen = acted(both, choice, engine, STEPS[script])
        finally:
            first.shutdown()
        told = runner_of(engine).told
        return Played(told, seen, both.faults, engine.redone, len(engine.ahead.results))


@functools.cache
def play(script: str, count: int) -> list[Played]:
    return on_ranks(count, played, script, seconds=200)


SCRIPTS = pytest.mark.parametrize(
    ("script", "count"), [("sure", 2), ("unsure", 2), ("faulty", 2), ("sure again", 4)]
)


@SCRIPTS
def test_whatever_is_asked_next_every_result_is_that_of_one_rank_that_runs_when_asked(
    script: str, count: int
) -> None:
    first = play(script, count)[0]
    seen = first.seen
    assert min(seen[what] for what in ("kept", "opened", "closed", "others asked")) > 2, seen
    assert seen["joined"] > STEPS[script] / 4, seen
    assert (first.redone > STEPS[script] / 15) == (script == "unsure")
    assert (first.faults > 3) == (script == "faulty")
    assert first.held == 0


@SCRIPTS
def test_all_ranks_launch_the_same_work_in_the_same_order(script: str, count: int) -> None:
    first, *others = play(script, count)
    for other in others:
        assert other.told == first.told
        assert other.redone == first.redone


def prompt_first(place: Place) -> tuple[list[int], list[tuple[Any, bytes]]]:
    """How much this rank has launched after each call of rank 0's, and what."""
    engine = ranked(place)
    runner, runs = runner_of(engine), list[int]()
    if place.share.rank:
        follow(engine, following(engine, lambda words: None))
        return runs, runner.told
    first = leading(engine, IndexSplit())
    windows = [begun(first, 1)]
    for waits in (False, True, False):
        if waits:
            # It came while the round is under way.
            windows = after(windows, first.round(windows).land(lambda: True))
            windows.append(begun(first, 2))
        else:
            windows = after(windows, first.round(windows).land())
        runs.append(runner.runs)
        assert (engine.ahead.round is None) == waits
    for stream in (1, 2):
        first.close(stream)
    first.shutdown()
    return runs, runner.told


def test_a_prompt_that_came_meanwhile_goes_before_the_next_round_on_all_ranks() -> None:
    (runs, told), (_, other) = on_ranks(2, prompt_first)
    # A prompt, a round and the one ahead of it; another prompt; a round of both and the next.
    assert runs == [3, 4, 6]
    assert other == told


def ended(place: Place, gone: int, when: str) -> tuple[float, str]:
    """Seconds from what this rank last launched to its end, and why it ended; rank `gone` kills
    itself while rounds run ahead."""
    engine = ranked(place)
    runner = runner_of(engine)
    last = time.monotonic()

    def die() -> None:
        if place.share.rank == gone:
            os.kill(os.getpid(), signal.SIGKILL)

    def launching() -> None:
        nonlocal last
        last = time.monotonic()
        # The round that runs ahead of the second one asked for.
        if when == "before it is launched" and runner.runs == 4:
            die()

    runner.launching = launching
    if place.share.rank:
        lost: list[str] = []
        link = following(engine, lost.append)
        if when == "before it is decided":
            engine.ahead.launching = dying(engine, die)  # type: ignore[method-assign]
        try:
            follow(engine, link)
        except RuntimeError:
            # What it exchanges ends with the other; the link says why.
            link.thread.join()
        return time.monotonic() - last, lost[0]
    first = leading(engine, IndexSplit())
    windows = [begun(first, 1, most=200)]
    if when == "before it is decided":
        engine.ahead.launching = dying(engine, die)  # type: ignore[method-assign]
    try:
        for number in range(150):
            windows = after(windows, first.round(windows).land())
            if when == "between two rounds" and number == 3:
                die()
                time.sleep(1)
    except EngineLost as error:
        first.shutdown()
        return time.monotonic() - last, str(error)
    raise AssertionError("it was never lost")


def dying(engine: TorchEngine, die: Callable[[], None]) -> Callable[..., Any]:
    launching = engine.ahead.launching

    def launch(*given: Any) -> Callable[[np.ndarray], np.ndarray]:
        launch_on = launching(*given)

        def words_are_there(words: np.ndarray) -> np.ndarray:
            if runner_of(engine).runs == 4:
                die()
            return launch_on(words)

        return words_are_there

    return launch


@pytest.mark.parametrize(
    ("gone", "when"),
    [
        (0, "before it is decided"),
        (1, "before it is decided"),
        (0, "before it is launched"),
        (1, "before it is launched"),
        (0, "between two rounds"),
    ],
)
def test_a_rank_that_dies_while_rounds_run_ahead_ends_the_others_in_time(
    gone: int, when: str
) -> None:
    seconds, words = on_ranks(2, ended, gone, when, killed=[gone])[1 - gone]
    assert words == f"rank {gone} has ended"
    assert seconds < END_SECONDS
