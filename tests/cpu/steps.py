"""Rounds to drive a step with: both families with their drafters, and an engine's parts rebuilt."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorfold.core.engine.runner import Runner
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Landed, Opening, Piece, Sampling, Window
from tensorfold.core.ops import Ops
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tests.cpu import driving
from tests.cpu.driving import VOCAB, some_tokens
from tests.cpu.dsv41 import engines
from tests.cpu.dsv41.test_dspark import drafting_checkpoint

STREAMS = 8
DRAFTS = {"mtp": 2, "dspark": 5}
SAMPLED = Sampling(temperature=1.0)
CUT = Sampling(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01)


def family_engine(drafter: str, folder: Path) -> TorchEngine:
    """Eight lanes; `drafter` is "mtp" (glm53) or "dspark" (dsv41)."""
    if drafter == "mtp":
        return driving.opened(drafts=DRAFTS[drafter])
    sizes = {"window_rows": 6, "drafts": DRAFTS[drafter]}
    return engines.opened("plain", drafting_checkpoint(folder), **sizes)


def rebuilt(
    engine: TorchEngine, *, ops: Ops | None = None, runner: Runner | None = None
) -> TorchEngine:
    """Another engine over the same weights and storage."""
    model: Any = engine.model
    ops = ops or model.ops
    family = GLM53 if engine.info.family == "glm53" else DSV41
    buffers = engine.storage.buffers
    made = family.model(model.config, model.weights, ops, buffers)
    drafter = family.drafter(model.config, model.weights, ops, buffers, made)
    return TorchEngine(
        info=engine.info,
        model=made,
        ops=ops,
        storage=engine.storage,
        tile=engine.tile,
        drafter=drafter,
        runner=runner,
    )


@dataclass(frozen=True, kw_only=True)
class Scene:
    """How eight streams are asked for: each stream's sampling in turn, and what else."""

    how: Sequence[Sampling] = (Sampling(),)
    logprobs: int | None = None
    masks: bool = False


SCENES: Mapping[str, Scene] = {
    "greedy": Scene(),
    "sampled": Scene(how=(SAMPLED,)),
    "cut": Scene(how=(CUT,)),
    "masked": Scene(how=(Sampling(), SAMPLED), masks=True),
    "told": Scene(logprobs=3),
    "mixed": Scene(how=(Sampling(), SAMPLED, CUT), logprobs=2, masks=True),
}


def some_mask(choice: random.Random) -> bytes | None:
    if choice.random() < 0.4:
        return None
    bits = sum(1 << token for token in range(VOCAB) if choice.random() < 0.5)
    return bits.to_bytes(-(-VOCAB // 8), "little")


def begun(engine: TorchEngine, scene: Scene, streams: int = STREAMS) -> dict[int, list[int]]:
    """Open streams, prompts in; each stream's coming window by its number."""
    found = {}
    for stream in range(streams):
        prompt = tuple(some_tokens(5 + 9 * stream, seed=stream))
        engine.open(
            Opening(
                stream=stream,
                prompt=prompt,
                most=120,
                sampling=scene.how[stream % len(scene.how)],
                seed=stream - 3,
                logprobs=scene.logprobs,
            )
        )
        piece = Piece(stream=stream, start=0, end=len(prompt), want=engine.info.drafts)
        (filled,) = engine.fill([piece]).land()
        assert filled.token is not None
        found[stream] = [filled.token, *filled.drafts]
    return found


def windows_of(
    engine: TorchEngine, coming: Mapping[int, Sequence[int]], scene: Scene, choice: random.Random
) -> list[Window]:
    """Windows of the drafts that are there, some of them spoiled, some shortened."""
    windows = []
    for stream, tokens in coming.items():
        own = list(tokens)
        if len(own) > 1 and choice.random() < 0.3:
            own[choice.randrange(1, len(own))] = choice.randrange(VOCAB)
        if choice.random() < 0.2:
            own = own[: choice.randint(1, len(own))]
        masks = tuple(some_mask(choice) for _ in own) if scene.masks else ()
        want = choice.choice([engine.info.drafts, engine.info.drafts, 1, 0])
        windows.append(Window(stream=stream, tokens=tuple(own), want=want, masks=masks))
    return windows


def told_by(engine: TorchEngine, scene: Scene, rounds: int, seed: int = 0) -> list[Landed]:
    """Everything that some rounds of eight streams give; the streams are closed after."""
    choice = random.Random(seed)
    coming = begun(engine, scene)
    found: list[Landed] = []
    for _ in range(rounds):
        for one in engine.round(windows_of(engine, coming, scene, choice)).land():
            assert one.fault is None, one
            found.append(one)
            coming[one.stream] = [one.tokens[-1], *one.drafts]
    for stream in coming:
        engine.close(stream)
    return found


def self_drafted(
    engine: TorchEngine, how: Sampling, rounds: int, length: int = 20
) -> tuple[int, int, int]:
    """A reply of so many rounds that are given all drafts of the one before, whatever they cost:
    its tokens, drafts, and drafts accepted."""
    prompt = tuple(some_tokens(length))
    most = engine.info.context - length
    engine.open(Opening(stream=1, prompt=prompt, most=most, sampling=how, seed=4))
    want = engine.info.drafts
    (filled,) = engine.fill([Piece(stream=1, start=0, end=length, want=want)]).land()
    assert filled.token is not None
    coming = [filled.token, *filled.drafts]
    made, drafted = 1, 0
    for _ in range(rounds):
        (landed,) = engine.round([Window(stream=1, tokens=tuple(coming), want=want)]).land()
        made, drafted = made + len(landed.tokens), drafted + len(coming) - 1
        coming = [landed.tokens[-1], *landed.drafts]
    engine.close(1)
    return made, drafted, made - 1 - rounds
