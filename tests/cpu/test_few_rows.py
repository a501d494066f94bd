"""Prompts of few rows may be rounded up and captured: what they give and leave is that of the same
prompts run as they are."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tensorfold.core.engine import sampling
from tensorfold.core.engine.compile import library_ops
from tensorfold.core.engine.packing import FEW, STEP, Powers, Shape
from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.runner import AtOnce, Run, Wait
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Filled, Opening, Piece
from tests.cpu.driving import VOCAB
from tests.cpu.steps import SCENES, Scene, family_engine, rebuilt, some_mask
from tests.cpu.test_steps import Replayed, powers

# Rows of each prompt of a pack, whole prompts all of them.
PACKS = ((1,), (2,), (63,), (64,), (65,), (129,), (1, 1), (64, 64), (5, 64, 33), (9, 70, 1, 3, 60))


@pytest.fixture(scope="module", params=["mtp", "dspark"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    return family_engine(request.param, tmp_path_factory.mktemp(request.param))


def as_they_are(engine: TorchEngine) -> TorchEngine:
    """The same engine, which rounds nothing and reads all of every prompt."""
    made = rebuilt(engine)
    made.prompting = replace(made.prompting, captures=False, shortcut=False)
    return made


@dataclass(kw_only=True)
class Fill:
    """What a forward gave, and each stream's state after it."""

    found: list[Filled]
    states: list[dict[str, Tensor]] = field(default_factory=list)


def opened(engine: TorchEngine, scene: Scene, lengths: Sequence[int], seed: int) -> list[Piece]:
    """Whole prompts of these lengths, opened as a scene asks, as the pieces of one forward."""
    choice = random.Random(seed)
    pieces = []
    for stream, length in enumerate(lengths):
        prompt = tuple(choice.randrange(1, VOCAB) for _ in range(length))
        engine.open(
            Opening(
                stream=stream,
                prompt=prompt,
                most=40,
                sampling=scene.how[stream % len(scene.how)],
                seed=seed + stream,
                logprobs=scene.logprobs,
            )
        )
        mask = some_mask(choice) if scene.masks else None
        want = choice.choice([engine.info.drafts, 1, 0])
        pieces.append(Piece(stream=stream, start=0, end=length, want=want, mask=mask))
    return pieces


def run(engine: TorchEngine, pieces: Sequence[Piece]) -> Fill:
    found = Fill(found=list(engine.fill(pieces).land()))
    for piece in pieces:
        held = stream_state(engine.storage, engine.streams[piece.stream].seat, piece.end)
        found.states.append({name: part.clone() for name, part in held.items()})
    return found


def filled(engine: TorchEngine, scene: Scene, lengths: Sequence[int], seed: int = 0) -> Fill:
    pieces = opened(engine, scene, lengths, seed)
    found = run(engine, pieces)
    for piece in pieces:
        engine.close(piece.stream)
    return found


def same(one: Fill, other: Fill) -> None:
    assert one.found == other.found
    for own, theirs in zip(one.states, other.states, strict=True):
        for name, part in own.items():
            assert torch.equal(part, theirs[name]), name


@pytest.mark.parametrize("name", SCENES)
def test_prompts_rounded_up_give_and_leave_the_same(engine: TorchEngine, name: str) -> None:
    plain, padded = as_they_are(engine), rebuilt(engine, runner=AtOnce(powers(engine)))
    for seed, lengths in enumerate(PACKS):
        same(
            filled(padded, SCENES[name], lengths, seed), filled(plain, SCENES[name], lengths, seed)
        )


def test_a_prompt_of_every_small_width_is_the_same_rounded_up(engine: TorchEngine) -> None:
    plain, padded = as_they_are(engine), rebuilt(engine, runner=AtOnce(powers(engine)))
    for length in range(1, 71):
        one, other = (filled(made, SCENES["told"], (length,), length) for made in (padded, plain))
        same(one, other)


def test_rounded_prompts_go_on_from_pieces_and_kept_states(engine: TorchEngine) -> None:
    """Pieces that end no prompt, marks, and a start behind rows that others ran."""
    grid = engine.info.grid
    first = -(-70 // grid) * grid
    tokens = tuple(random.Random(3).randrange(1, VOCAB) for _ in range(first + 45))
    found = []
    for one in (as_they_are(engine), rebuilt(engine, runner=AtOnce(powers(engine)))):
        one.open(Opening(stream=1, prompt=tokens, most=9, marks=(first,)))
        one.open(Opening(stream=2, prompt=tokens[:9], most=9))
        pieces = [Piece(stream=1, start=0, end=first), Piece(stream=2, start=0, end=9, want=1)]
        begun = run(one, pieces)
        saved = begun.found[0].saved
        assert saved is not None
        assert begun.found[0].token is None
        begun.found[0] = replace(begun.found[0], saved=replace(saved, id=0))
        for stream in (4, 5):
            one.open(Opening(stream=stream, prompt=tokens[:stream], most=9))
        others = [Piece(stream=stream, start=0, end=stream) for stream in (4, 5)]
        # Its first row has rows before it, and a draw that is padding stands beside it.
        ended = run(one, [Piece(stream=1, start=first, end=len(tokens), want=1), *others])
        one.close(1)
        one.open(Opening(stream=3, prompt=tokens, most=9, resume=saved))
        resumed = run(one, [Piece(stream=3, start=first, end=len(tokens), want=1)])
        assert resumed.found[0] == replace(ended.found[0], stream=3)
        found.append([begun, ended, resumed])
        one.drop(saved)
        for stream in (2, 3, 4, 5):
            one.close(stream)
    for own, theirs in zip(*found, strict=True):
        same(own, theirs)


def test_prompts_of_few_rows_share_few_shapes_and_others_are_as_they_are(
    engine: TorchEngine,
) -> None:
    padded = rebuilt(engine, runner=AtOnce(powers(engine)))

    def shape_of(lengths: Sequence[int], how: str = "greedy", **asked: int) -> Shape:
        pieces = opened(padded, SCENES[how], lengths, 0)
        pieces = [replace(piece, want=0, **asked) for piece in pieces]
        shape = padded.prompting.order(padded.streams, pieces, exact=False).shape
        for piece in pieces:
            padded.close(piece.stream)
        return shape

    alone = {shape_of((rows,)) for rows in range(1, STEP + 1)}
    assert {(one.rows, one.streams, one.reads) for one in alone} == {(STEP, 1, None)}
    assert len(alone) == 1
    packs = {shape_of((STEP - 4,) * count) for count in (5, 6, 7, 8)}
    assert {one.streams for one in packs} == {8}
    assert {one.rows % STEP for one in packs} == {0}
    assert len({one.blocks for one in packs}) == 1
    # What one of them asks for is made of all of them.
    told = shape_of((3, 3, 3), "mixed")
    assert (told.drawn, told.noisy, told.cut, told.told, told.masked) == (4,) * 5
    # Log-probabilities of as many rows as a prompt has are of a shape of its own.
    assert shape_of((50,), "told", logprobs=1).rows < STEP
    assert padded.runner.buckets.prompt(FEW) == FEW
    assert padded.runner.buckets.prompt(FEW + 1) == 0
    assert Powers(tile=2, most_rows=8, most_window=1, prompts=False).prompt(5) == 0


class Leaving(Replayed):
    """Its replays leave a prompt's hidden rows where its capture left them, as a device does."""

    hidden: dict[Shape, list[Tensor]]

    @torch.inference_mode()
    def run(
        self, words: np.ndarray, step: Run, shape: Shape | None, idle: Callable[[], np.ndarray]
    ) -> Wait:
        if shape is None:
            return super().run(words, step, shape, idle)
        left = self.hidden[shape]
        if shape not in self.captured:
            self.captured[shape] = make_fx(lambda words: (step(words), left[0]))(
                torch.from_numpy(idle())
            )
        out, left[0] = self.captured[shape](torch.from_numpy(words))
        self.replays += 1
        return lambda: out.numpy()


def test_captured_prompts_replay_and_draw_again(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay's hidden rows are drawn from again where a draw was unsure."""
    model: Any = engine.model
    ops = library_ops(f"replayed_prompts_{engine.info.family}", model.ops)
    runner = Leaving(powers(engine))
    replaying, plain = rebuilt(engine, ops=ops, runner=runner), as_they_are(engine)
    runner.hidden = replaying.hidden
    for seed in range(3):
        own = filled(replaying, SCENES["mixed"], (5, 64, 33), seed)
        same(own, filled(plain, SCENES["mixed"], (5, 64, 33), seed))
    assert len(runner.captured) < runner.replays == 3
    assert not replaying.redone
    monkeypatch.setattr(sampling, "CANDIDATES", 1)
    # Any noise may then be the highest.
    monkeypatch.setattr(sampling, "SLACK", 3.0)
    for seed in range(3):
        own = filled(replaying, SCENES["sampled"], (5, 64, 33), seed)
        wanted = filled(plain, SCENES["sampled"], (5, 64, 33), seed)
        for one, other in zip(own.found, wanted.found, strict=True):
            # A draft's own draw is not made again.
            assert (one.token, one.logprob) == (other.token, other.logprob)
    assert replaying.redone == 9


def test_words_of_nothing_but_padding_touch_no_stream(engine: TorchEngine) -> None:
    padded = rebuilt(engine, runner=AtOnce(powers(engine)))
    pieces = opened(padded, SCENES["mixed"], (60, 5, 70), 0)
    run(padded, pieces)
    storage = padded.storage
    shape = padded.prompting.order(padded.streams, pieces, exact=False).shape
    before = {name: buffer.clone() for name, buffer in storage.buffers.items()}
    with torch.inference_mode():
        padded.step.prompt(torch.from_numpy(padded.prompting.idle(shape)), shape)
    spare = storage.spec.page * storage.spare_page
    for entry in storage.spec.entries:
        every = getattr(entry, "every", 0)
        kept = slice(spare // every) if every else slice(storage.spare_lane)
        held = storage.buffers[entry.name][kept]
        assert torch.equal(held, before[entry.name][kept]), entry.name
    for piece in pieces:
        padded.close(piece.stream)
