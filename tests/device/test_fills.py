"""Prompts of few rows on a GPU: rounded up, then captured, then replayed, they leave the bits of
the same prompts run as they are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine import sampling
from tensorfold.core.engine.graphs import Queued
from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Filled, Opening, Piece, Sampling
from tests.device.opening import CAPTURED, Opened, names, opened_once

pytestmark = pytest.mark.timeout(300)
HOWS = (Sampling(), Sampling(temperature=0.8), Sampling(temperature=1.0, top_p=0.9, top_k=40))
PACKS = ((60,), (1,), (64,), (65,), (60,) * 7, (5, 64, 33), (130, 1), (200,))


@pytest.fixture(scope="module")
def engine_of() -> Iterator[Opened]:
    yield from opened_once()


def filled(
    engine: TorchEngine, lengths: Sequence[int], how: Sequence[Sampling], seed: int
) -> tuple[list[Filled], list[dict[str, Tensor]]]:
    """What a pack of prompts gives, and the state of each stream after it."""
    choice = random.Random(seed)
    pieces = []
    for stream, length in enumerate(lengths):
        prompt = tuple(choice.randrange(engine.info.vocab_size) for _ in range(length))
        engine.open(
            Opening(
                stream=stream,
                prompt=prompt,
                most=8,
                sampling=how[stream % len(how)],
                seed=seed + stream,
                logprobs=2 if len(how) > 1 else None,
            )
        )
        pieces.append(Piece(stream=stream, start=0, end=length))
    found = list(engine.fill(pieces).land())
    states = []
    for piece in pieces:
        held = stream_state(engine.storage, engine.streams[piece.stream].seat, piece.end)
        states.append({name: part.clone() for name, part in held.items()})
        engine.close(piece.stream)
    return found, states


@names("fills")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_captured_prompts_have_the_bits_of_prompts_that_run_as_they_are(
    name: str, dtype: str, engine_of: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(name, dtype=dtype, chunk_rows=512, **CAPTURED)
    runner: Any = engine.runner
    assert isinstance(runner, Queued)
    rounding = engine.prompting
    plain = replace(rounding, captures=False, shortcut=False)
    for how in (HOWS[:1], HOWS):
        for lengths in PACKS:
            for seed in range(3):
                monkeypatch.setattr(engine, "prompting", plain)
                wanted, left = filled(engine, lengths, how, seed)
                monkeypatch.setattr(engine, "prompting", rounding)
                found, after = filled(engine, lengths, how, seed)
                assert found == wanted, (lengths, seed)
                for own, other in zip(after, left, strict=True):
                    assert all(torch.equal(own[part], other[part]) for part in own), lengths
    assert sum(not shape.window for shape in runner.graphs) >= len(PACKS)


@names("fills")
def test_a_replayed_prompts_unsure_draws_are_made_again_from_what_it_left(
    name: str, engine_of: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(name, dtype="bfloat16", chunk_rows=512, **CAPTURED)
    plain = [filled(engine, (60, 5), HOWS[1:2], seed) for seed in range(4)]
    monkeypatch.setattr(sampling, "CANDIDATES", 1)
    # Any noise may then be the highest.
    monkeypatch.setattr(sampling, "SLACK", 3.0)
    before = engine.redone
    again = [filled(engine, (60, 5), HOWS[1:2], seed) for seed in range(4)]
    assert engine.redone - before == 8
    assert [one for one, _ in again] == [one for one, _ in plain]
