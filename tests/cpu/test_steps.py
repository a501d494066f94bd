"""A step's sizes come from its shape alone, and whatever is rounded up or captured, results are
those of the same round as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tensorfold.core.engine import sampling
from tensorfold.core.engine.compile import library_ops
from tensorfold.core.engine.landing import FAULTS
from tensorfold.core.engine.packing import Powers, Shape
from tensorfold.core.engine.runner import AtOnce, Run, Wait
from tensorfold.core.engine.step import NO_TOKEN
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Landed, Opening, Piece, Sampling, Window
from tests.cpu.driving import VOCAB, some_tokens
from tests.cpu.steps import SCENES, begun, family_engine, rebuilt, told_by

ROUNDS = 5


@pytest.fixture(scope="module", params=["mtp", "dspark"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    return family_engine(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def wanted(engine: TorchEngine) -> dict[str, list[Landed]]:
    return {name: told_by(engine, scene, ROUNDS) for name, scene in SCENES.items()}


def powers(engine: TorchEngine) -> Powers:
    info = engine.info
    return Powers(tile=engine.tile, most_rows=info.round_rows, most_window=info.window_rows)


@pytest.mark.parametrize("name", SCENES)
def test_sizes_rounded_up_give_the_same_results_with_chances_and_all(
    engine: TorchEngine, wanted: dict[str, list[Landed]], name: str
) -> None:
    padded = rebuilt(engine, runner=AtOnce(powers(engine)))
    assert told_by(padded, SCENES[name], ROUNDS) == wanted[name]


class Replayed:
    """A runner that captures a shape's operations once, on words that touch no stream, and then
    only repeats them on other words: whatever looked at a value would be repeated wrongly."""

    queued = True

    def __init__(self, buckets: Powers) -> None:
        self.buckets = buckets
        self.captured: dict[Shape, Callable[[torch.Tensor], torch.Tensor]] = {}
        self.replays = 0

    @torch.inference_mode()
    def run(
        self, words: np.ndarray, step: Run, shape: Shape | None, idle: Callable[[], np.ndarray]
    ) -> Wait:
        given = torch.from_numpy(words)
        if shape is None:
            out = step(given)
        else:
            if shape not in self.captured:
                self.captured[shape] = make_fx(step)(torch.from_numpy(idle()))
            out = self.captured[shape](given)
            self.replays += 1
        return lambda: out.numpy()

    def ready(self, *args: Any) -> None:
        return None


@pytest.mark.parametrize("name", ["greedy", "mixed"])
def test_a_captured_step_replays_every_round_of_its_shape(
    engine: TorchEngine, wanted: dict[str, list[Landed]], name: str
) -> None:
    model: Any = engine.model
    runner = Replayed(powers(engine))
    ops = library_ops(f"replayed_{engine.info.family}_{name}", model.ops)
    replaying = rebuilt(engine, ops=ops, runner=runner)
    assert told_by(replaying, SCENES[name], ROUNDS) == wanted[name]
    again = told_by(replaying, SCENES[name], ROUNDS, seed=1)
    assert again == told_by(engine, SCENES[name], ROUNDS, seed=1)
    assert len(runner.captured) < runner.replays / 2


def test_words_of_nothing_but_padding_touch_no_stream(engine: TorchEngine) -> None:
    padded = rebuilt(engine, runner=AtOnce(powers(engine)))
    scene = SCENES["mixed"]
    coming = begun(padded, scene)
    windows = [
        Window(stream=stream, tokens=tuple(tokens), want=padded.info.drafts)
        for stream, tokens in coming.items()
    ]
    ordering = padded.ordering
    shape = ordering.round(windows, ordering.coming(padded.streams, windows)).shape
    storage = padded.storage
    spare = storage.spec.page * storage.spare_page
    before = {name: buffer.clone() for name, buffer in storage.buffers.items()}
    with torch.inference_mode():
        padded.step.round(torch.from_numpy(padded.ordering.idle(shape)), shape)
    for entry in storage.spec.entries:
        every = getattr(entry, "every", 0)
        kept = slice(spare // every) if every else slice(storage.spare_lane)
        held = storage.buffers[entry.name][kept]
        assert torch.equal(held, before[entry.name][kept]), entry.name
    for stream in coming:
        padded.close(stream)


@pytest.mark.parametrize("name", ["sampled", "cut", "mixed"])
def test_draws_that_need_more_reach_are_made_again_and_no_result_differs(
    engine: TorchEngine,
    wanted: dict[str, list[Landed]],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampling, "CANDIDATES", 1)
    monkeypatch.setattr(sampling, "HEAD", 2)
    monkeypatch.setattr(sampling, "OPEN_HEAD", 2)
    # Any noise may then be the highest.
    monkeypatch.setattr(sampling, "SLACK", 3.0)
    before = engine.redone
    found = told_by(engine, SCENES[name], ROUNDS)
    assert engine.redone - before > 5
    for one, other in zip(found, wanted[name], strict=True):
        # A draft's own draw is not made again.
        assert (one.tokens, one.logprobs) == (other.tokens, other.logprobs)


def nothing() -> bytes:
    return bytes(-(-VOCAB // 8))


@pytest.mark.parametrize("sampling_of_it", [Sampling(), SCENES["cut"].how[0]])
def test_a_mask_that_allows_nothing_is_its_streams_fault_alone(
    engine: TorchEngine, sampling_of_it: Sampling
) -> None:
    prompts = [tuple(some_tokens(20, seed=seed)) for seed in range(3)]
    for stream, prompt in enumerate(prompts):
        engine.open(Opening(stream=stream, prompt=prompt, most=20, sampling=sampling_of_it))
    (alone,) = engine.fill([Piece(stream=0, start=0, end=20, want=2)]).land()
    pieces = [
        Piece(stream=1, start=0, end=20, want=2, mask=nothing()),
        Piece(stream=2, start=0, end=20, want=2),
    ]
    first, second = engine.fill(pieces).land()
    assert (first.fault, first.token, first.drafts) == (FAULTS[NO_TOKEN], None, ())
    assert second.fault is None
    engine.close(1)
    assert alone.token is not None
    assert second.token is not None
    undisturbed = engine.round([Window(stream=2, tokens=(second.token,), want=2)]).land()
    engine.close(2)
    engine.open(Opening(stream=2, prompt=prompts[2], most=20, sampling=sampling_of_it))
    engine.fill([Piece(stream=2, start=0, end=20, want=2)]).land()
    masked = Window(stream=0, tokens=(alone.token, 5), masks=(nothing(), None), want=2)
    other = Window(stream=2, tokens=(second.token,), want=2)
    faulted, landed = engine.round([masked, other]).land()
    assert faulted == Landed(stream=0, fault=FAULTS[NO_TOKEN])
    assert [landed] == list(undisturbed)
    engine.close(0)
    engine.close(2)


def test_a_mask_that_allows_nothing_behind_the_rows_that_count_does_no_harm(
    engine: TorchEngine,
) -> None:
    prompt = tuple(some_tokens(20, seed=9))
    engine.open(Opening(stream=1, prompt=prompt, most=20))
    (filled,) = engine.fill([Piece(stream=1, start=0, end=20)]).land()
    assert filled.token is not None
    (landed,) = engine.round([Window(stream=1, tokens=(filled.token,))]).land()
    wrong = (landed.tokens[0] + 1) % VOCAB
    engine.close(1)
    engine.open(Opening(stream=1, prompt=prompt, most=20))
    engine.fill([Piece(stream=1, start=0, end=20)]).land()
    window = Window(stream=1, tokens=(filled.token, wrong), masks=(None, nothing()))
    (again,) = engine.round([window]).land()
    assert again == landed
    engine.close(1)


def test_a_chained_drafts_chance_is_its_heads_own_probability_of_it(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = family_engine("mtp", tmp_path_factory.mktemp("chances"))
    assert engine.drafting is not None
    drafter: Any = engine.drafting.drafter
    seen: list[torch.Tensor] = []
    own = drafter.logits

    def logits(hidden_RD: torch.Tensor) -> torch.Tensor:
        seen.append(own(hidden_RD))
        return seen[-1]

    monkeypatch.setattr(drafter, "logits", logits)
    for how in (Sampling(), SCENES["cut"].how[0]):
        prompt = tuple(some_tokens(20))
        engine.open(Opening(stream=1, prompt=prompt, most=20, sampling=how))
        (filled,) = engine.fill([Piece(stream=1, start=0, end=20)]).land()
        assert filled.token is not None
        seen.clear()
        (landed,) = engine.round([Window(stream=1, tokens=(filled.token,), want=2)]).land()
        assert len(landed.chances) == len(landed.drafts) == len(seen) == 2
        for depth, (token, chance) in enumerate(zip(landed.drafts, landed.chances, strict=True)):
            assert chance == float(torch.softmax(seen[depth][0], -1)[token])
        engine.close(1)
