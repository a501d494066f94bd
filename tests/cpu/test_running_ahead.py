"""Rounds that run before they are asked for give what they would have given when asked."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from tensorfold.core.engine import sampling
from tensorfold.core.engine.packing import Powers, Shape
from tensorfold.core.engine.runner import Ready, Run, Wait
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Engine, Landed, Opening, Piece, Sampling, Window
from tests.cpu.driving import VOCAB, opened, some_tokens
from tests.cpu.steps import CUT, SAMPLED, rebuilt, some_mask


class Shared:
    """A queued runner whose steps of a shape write the same words: none may be read once the next
    one was run."""

    queued = True

    def __init__(self, engine: TorchEngine) -> None:
        info = engine.info
        self.buckets = Powers(
            tile=engine.tile, most_rows=info.round_rows, most_window=info.window_rows
        )
        self.words: dict[Shape, np.ndarray] = {}
        self.runs = 0
        self.apart = True
        self.waited: set[int] = set()

    @torch.inference_mode()
    def run(
        self, words: np.ndarray, step: Run, shape: Shape | None, idle: Callable[[], np.ndarray]
    ) -> Wait:
        self.runs += 1
        out = step(torch.from_numpy(words.copy())).numpy()
        if shape is not None:
            held = self.words.setdefault(shape, np.empty_like(out))
            held[:] = out
            out = held
        own = self.runs

        def wait() -> np.ndarray:
            assert own not in self.waited, "waited for twice"
            self.waited.add(own)
            return out

        return wait

    def ready(
        self, words: np.ndarray, step: Run, shape: Shape, idle: Callable[[], np.ndarray]
    ) -> Ready | None:
        return (lambda: self.run(words, step, shape, idle)) if self.apart else None


@pytest.fixture(scope="module")
def engines() -> tuple[TorchEngine, TorchEngine]:
    """One that runs ahead, and one that does what it is asked when it is asked."""
    ahead, plain = (opened(lanes=6, context=256, drafts=2) for _ in range(2))
    return rebuilt(ahead, runner=Shared(ahead)), plain


HOWS = (Sampling(), SAMPLED, CUT, Sampling(temperature=1.0, top_p=0.6))
# Their embeddings are not finite in one of the scripts: a reply that draws one ends with a fault.
BAD = (7, 77, 120)


def told(landed: Sequence[Landed]) -> list[Landed]:
    """Less the drafts: a draft layer has seen what rows were in a round that asked for some."""
    return [replace(one, drafts=(), chances=()) for one in landed]


class Both:
    """The same calls to both engines; every result is compared."""

    def __init__(self, engines: tuple[Engine, Engine], choice: random.Random) -> None:
        self.engines, self.choice = engines, choice
        self.pending: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.going: set[int] = set()
        self.faults = 0

    def open(self, stream: int) -> None:
        choice = self.choice
        tokens = some_tokens(choice.randrange(3, 70), seed=stream)
        prompt = tuple(1 if token in BAD else token for token in tokens)
        opening = Opening(
            stream=stream,
            prompt=prompt,
            most=choice.choice([4, 60]),
            sampling=choice.choice(HOWS),
            seed=stream,
            logprobs=choice.choice([None, 0, 3]),
        )
        found = []
        for engine in self.engines:
            engine.open(opening)
            found += engine.fill([Piece(stream=stream, start=0, end=len(prompt))]).land()
        assert found[0] == found[1]
        assert found[0].token is not None
        self.pending[stream] = found[0].token
        self.left[stream] = opening.most - 1

    def close(self, stream: int) -> None:
        for engine in self.engines:
            engine.close(stream)
        del self.pending[stream], self.left[stream]
        self.going.discard(stream)

    def window(self, stream: int, goes_on: bool) -> Window:
        """Anything, but no more than the token where the last window said so."""
        choice, tokens = self.choice, [self.pending[stream]]
        plain = stream in self.going or choice.random() < 0.8
        if not plain and choice.random() < 0.5:
            tokens += [choice.randrange(VOCAB) for _ in range(min(2, self.left[stream] - 1))]
        masks: tuple[bytes | None, ...] = ()
        if not plain and choice.random() < 0.5:
            masks = tuple(some_mask(choice) for _ in tokens)
        return Window(
            stream=stream,
            tokens=tuple(tokens),
            masks=masks,
            want=0 if plain else choice.choice([0, 2]),
            goes_on=goes_on and self.left[stream] > len(tokens),
        )

    def round(self, streams: Sequence[int], goes_on: bool) -> None:
        windows = [self.window(stream, goes_on) for stream in streams]
        flights = [engine.round(windows) for engine in self.engines]
        waits = self.choice.random() < 0.1
        found: list[Sequence[Landed]] = [flight.land(lambda: waits) for flight in flights]
        assert told(found[0]) == told(found[1])
        self.going -= set(streams)
        for window, landed in zip(windows, found[0], strict=True):
            stream = landed.stream
            if landed.fault is not None:
                self.faults += 1
                self.close(stream)
                continue
            self.pending[stream] = landed.tokens[-1]
            self.left[stream] -= len(landed.tokens)
            if window.goes_on:
                self.going.add(stream)
            if not self.left[stream]:
                self.close(stream)


@pytest.mark.parametrize("script", ["sure", "unsure", "faulty"])
def test_whatever_is_asked_next_every_result_is_that_of_rounds_run_when_asked(
    engines: tuple[TorchEngine, TorchEngine], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    choice = random.Random(script)
    both, engine = Both(engines, choice), engines[0]
    redone = engine.redone
    if script == "unsure":
        for name, size in (("HEAD", 2), ("OPEN_HEAD", 2), ("CANDIDATES", 1)):
            monkeypatch.setattr(sampling, name, size)
    with spoiled(engines) if script == "faulty" else nullcontext():
        seen = acted(both, choice, engine)
    assert not engine.ahead.results
    assert min(seen[what] for what in ("kept", "opened", "closed", "others asked")) > 3, seen
    assert seen["joined"] > 80, seen
    assert (engine.redone > redone + 20) == (script == "unsure")
    assert (both.faults > 3) == (script == "faulty")


@contextmanager
def spoiled(engines: Sequence[TorchEngine]) -> Iterator[None]:
    weights = [cast("Any", engine.model).weights.embed for engine in engines]
    whole = [embed.clone() for embed in weights]
    with torch.inference_mode():
        for embed in weights:
            embed[list(BAD)] = float("nan")
    try:
        yield
    finally:
        with torch.inference_mode():
            for embed, before in zip(weights, whole, strict=True):
                embed.copy_(before)


def acted(both: Both, choice: random.Random, engine: TorchEngine, steps: int = 300) -> Counter[str]:
    """A script of rounds, openings and closings; what was done while a round ran ahead."""
    seen = Counter[str]()
    numbers = itertools.count(choice.randrange(10**6))
    for _ in range(steps):
        ahead, live = engine.ahead.round, list(both.pending)
        seen["kept"] += bool(engine.ahead.results)
        what = choice.random()
        if len(live) < 2 or (what < 0.08 and len(live) < 6):
            both.open(next(numbers))
            seen["opened"] += ahead is not None
        elif what < 0.17:
            both.close(choice.choice(live))
            seen["closed"] += ahead is not None
        elif what < 0.25:
            both.round(choice.sample(live, len(live) - 1), choice.random() < 0.5)
            seen["others asked"] += ahead is not None
        else:
            both.round(live, choice.random() < 0.9)
            seen["joined"] += ahead is not None
    for stream in list(both.pending):
        both.close(stream)
    return seen


def begun(engine: Engine, stream: int, most: int = 20) -> Window:
    """A stream after its prompt, as its first window, which says that it goes on."""
    engine.open(Opening(stream=stream, prompt=tuple(some_tokens(9, seed=stream)), most=most))
    (filled,) = engine.fill([Piece(stream=stream, start=0, end=9)]).land()
    assert filled.token is not None
    return Window(stream=stream, tokens=(filled.token,), goes_on=True)


def after(windows: Sequence[Window], landed: Sequence[Landed]) -> list[Window]:
    return [replace(window, tokens=one.tokens) for window, one in zip(windows, landed, strict=True)]


def test_a_round_ahead_is_joined_without_a_wait_also_by_those_whom_one_has_left(
    engines: tuple[TorchEngine, TorchEngine],
) -> None:
    runner = Shared(engines[0])
    engine = rebuilt(engines[0], runner=runner)
    windows = [begun(engine, stream) for stream in (1, 2, 3)]
    windows = after(windows, engine.round(windows).land())
    for left in (3, 2, 1):
        runs, waited = runner.runs, len(runner.waited)
        flight = engine.round(windows[:left])
        assert (runner.runs, len(runner.waited)) == (runs, waited)
        windows = after(windows[:left], flight.land())
        assert len(runner.waited) == waited + 1
        if engine.ahead.round is None:
            # Of those that are left one round has to be asked for.
            windows = after(windows, engine.round(windows).land())
        engine.close(left)


def test_no_round_ahead_runs_past_a_streams_end(
    engines: tuple[TorchEngine, TorchEngine],
) -> None:
    runner = Shared(engines[0])
    engine = rebuilt(engines[0], runner=runner)
    windows = [begun(engine, 1, most=4)]
    runs = runner.runs
    # Its storage has a row for the last token, which needs none.
    for _ in range(4):
        windows = after(windows, engine.round(windows).land())
    assert runner.runs == runs + 4
    assert engine.ahead.round is None
    engine.close(1)


def test_a_prompt_that_came_meanwhile_does_not_wait_for_a_round_ahead(
    engines: tuple[TorchEngine, TorchEngine],
) -> None:
    engine = engines[0]
    windows = [begun(engine, 1)]
    for waits in (False, True, False):
        windows = after(windows, engine.round(windows).land(lambda waits=waits: waits))
        assert (engine.ahead.round is None) == waits
    engine.close(1)


def test_what_breaks_the_word_that_a_stream_goes_on_is_an_error(
    engines: tuple[TorchEngine, TorchEngine],
) -> None:
    engine = engines[0]
    windows = [begun(engine, 1)]
    for _ in range(3):
        windows = after(windows, engine.round(windows).land())
    assert engine.ahead.round is not None
    with pytest.raises(AssertionError, match="goes on"):
        engine.round([replace(windows[0], want=1)])
    engine.close(1)


@pytest.mark.parametrize("what", ["apart", "words shared", "held back"])
def test_neither_an_engine_that_may_not_nor_steps_that_share_their_words_run_ahead(
    engines: tuple[TorchEngine, TorchEngine], what: str
) -> None:
    runner = Shared(engines[0])
    runner.apart = what != "words shared"
    engine = rebuilt(engines[0], runner=runner)
    engine.ahead.may = what != "held back"
    engine.round([begun(engine, 1)]).land()
    assert (engine.ahead.round is not None) == (what == "apart")
    assert runner.runs == (3 if what == "apart" else 2)
    engine.close(1)


def test_an_engine_is_shut_down_behind_the_round_that_runs_ahead(
    engines: tuple[TorchEngine, TorchEngine],
) -> None:
    runner = Shared(engines[0])
    engine = rebuilt(engines[0], runner=runner)
    engine.round([begun(engine, 1)]).land()
    engine.close(1)
    assert len(runner.waited) == runner.runs - 1
    engine.shutdown()
    assert len(runner.waited) == runner.runs
