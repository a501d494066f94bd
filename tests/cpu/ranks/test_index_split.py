"""A split index changes no byte: tokens, log-probabilities and every state are those of a whole
one, on every rank."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.core.backend_api import Place
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Piece, Sampling, Saved
from tensorfold.core.ops.pick_tokens import list_of, list_width, picks_of, reference
from tests.cpu.driving import Asked, Told, begin, some_tokens, state_of, step, take
from tests.cpu.ranks.running import on_ranks, opened_at

CHUNK = 64
# In chunks of 64 what 6444, 4098, 4101 and 4096 rows are in chunks of 512.
LENGTHS = (268, 130, 133, 128)
HOW = ("", "cost", "rows")
pytestmark = pytest.mark.timeout(240)


def asked(length: int, seed: int = 3) -> Asked:
    sampling = Sampling(temperature=0.9)
    return Asked(prompt=tuple(some_tokens(length, seed)), most=4, sampling=sampling, seed=seed)


def filled(engine: TorchEngine, told: Told, how: str, first: int = 0, last: int = 0) -> None:
    """Chunks of a prompt; those that start at 64 or after it are split."""
    end = last or len(told.asked.prompt)
    for start in range(first, end, CHUNK):
        piece = Piece(
            stream=told.stream,
            start=start,
            end=min(start + CHUNK, end),
            split=how if start >= CHUNK else "",
        )
        (found,) = engine.fill([piece]).land()
        take(told, found)


def seen(engine: TorchEngine, told: Told) -> tuple[Any, dict[str, Tensor]]:
    """A reply's proof after two rounds, and every byte of the state under it."""
    step(engine, [told])
    step(engine, [told])
    state = state_of(engine, told.stream)
    engine.close(told.stream)
    return told.proof(), state


def alone(engine: TorchEngine, length: int, how: str) -> tuple[Any, dict[str, Tensor]]:
    told = begin(engine, 1, asked(length))
    filled(engine, told, how)
    return seen(engine, told)


def resumed(engine: TorchEngine, how: str) -> tuple[Any, dict[str, Tensor]]:
    """From a state kept in the middle of what was a chunk."""
    whole = asked(268)
    keeping = begin(engine, 2, replace(whole, most=1), marks=(192,))
    filled(engine, keeping, how)
    engine.close(2)
    kept: Saved = keeping.saved[0]
    told = begin(engine, 3, whole, resume=kept)
    assert told.cached == 192
    filled(engine, told, how, first=192)
    engine.drop(kept)
    return seen(engine, told)


def beside(engine: TorchEngine, how: str) -> tuple[Any, dict[str, Tensor]]:
    """A prompt split around a forward that packs two others."""
    told = begin(engine, 4, asked(268))
    filled(engine, told, how, last=128)
    others = [begin(engine, stream, asked(90, seed=stream)) for stream in (5, 6)]
    packed = [Piece(stream=other.stream, start=0, end=90) for other in others]
    for other, found in zip(others, engine.fill(packed).land(), strict=True):
        take(other, found)
    filled(engine, told, how, first=128)
    step(engine, others)
    for other in others:
        engine.close(other.stream)
    return seen(engine, told)


def played(place: Place | None) -> dict[str, Any]:
    """By scene and how: the proof, and whether every byte of the state is the whole index's."""
    engine = opened_at(place)
    found: dict[str, Any] = {}
    for how in HOW:
        for length in LENGTHS:
            found[f"{length} {how}"] = alone(engine, length, how)
        found[f"resumed {how}"] = resumed(engine, how)
        found[f"beside {how}"] = beside(engine, how)
    told = {}
    for name, (proof, state) in found.items():
        _, whole = found[name.split(" ")[0] + " "]
        equal = all(torch.equal(state[part], whole[part]) for part in whole)
        told[name] = (proof, equal)
    return told


@functools.cache
def play(count: int) -> list[dict[str, Any]]:
    return on_ranks(count, played)


@pytest.mark.parametrize("count", [2, 3])
def test_tokens_logprobs_and_every_state_are_those_of_a_whole_index(count: int) -> None:
    for told in play(count):
        for name, (proof, equal) in told.items():
            assert equal, name
            assert proof == told[name.split(" ")[0] + " "][0], name


def test_two_ranks_with_a_split_index_reply_as_one_without() -> None:
    one = play(1)[0]
    for name, (proof, _) in play(2)[0].items():
        assert proof == one[name][0], name


@pytest.mark.parametrize("top", [4, 64])
@pytest.mark.parametrize("pool", [1, 4])
def test_picks_hold_all_that_a_list_does(top: int, pool: int) -> None:
    generator = torch.Generator().manual_seed(top)
    page, pages, width = 64, 5, 300
    position_R = torch.randint(0, width, (70,), generator=generator)
    position_R[:6] = torch.tensor([0, 1, 2, 3, 4, width - 1])
    list_RK = reference(
        torch.randn(70, 2, 8, generator=generator),
        torch.rand(70, 2, generator=generator),
        torch.randn(pages * page // pool, 8, generator=generator),
        torch.arange(pages)[None],
        torch.zeros(70, dtype=torch.int64),
        position_R,
        top,
        pool,
        page,
        width,
    )
    picks_RP = picks_of(list_RK, position_R, top, pool)
    assert picks_RP.shape == (70, top)
    back = list_of(picks_RP, position_R, pool, list_width(top, pool, width))
    assert torch.equal(back, list_RK)
