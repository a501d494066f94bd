"""Prompt rows among prompt rows: length, packs, pieces and company leave a row's bits alone."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.contract_check import poisoned
from tensorfold.core.engine.replay import Replayed, replay
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.family_api import Cut
from tensorfold.families.glm53.model import Glm53
from tests.cpu.driving import GRID, claim, forward, same_state, some_tokens

EVERY = pytest.mark.parametrize("name", ["engine", "saturated", "wide"])


def in_pieces(engine: TorchEngine, tokens: Sequence[int], cuts: Sequence[int]) -> Replayed:
    ends = [*cuts, len(tokens)]
    rows = [end - start for start, end in zip([0, *cuts], ends, strict=True)]
    return replay(engine, tokens, [Cut("prompt", count) for count in rows])


def equal(one: Replayed, other: Replayed) -> bool:
    rows = torch.equal(one.hidden, other.hidden) and torch.equal(one.logits, other.logits)
    return rows and same_state(one.state, other.state)


@EVERY
def test_prompts_of_every_length_from_1_to_140_agree_on_their_common_rows(
    name: str, request: pytest.FixtureRequest
) -> None:
    engine = request.getfixturevalue(name)
    tokens = some_tokens(140)
    whole = in_pieces(engine, tokens, [])
    assert bool(torch.isfinite(whole.logits).all())
    wrong = []
    # The wide model at the awkward lengths alone, the others at every one.
    lengths = (
        range(1, 140) if name != "wide" else (*range(1, 24), 47, 48, 63, 64, 65, 127, 128, 129)
    )
    for length in lengths:
        ran = in_pieces(engine, tokens[:length], [])
        if not torch.equal(ran.logits, whole.logits[:length]):
            wrong.append(length)
        if not torch.equal(ran.hidden, whole.hidden[:length]):
            wrong.append(length)
    assert wrong == []


def test_the_saturated_model_calls_the_block_form_with_gates_at_their_bound(
    saturated: TorchEngine,
) -> None:
    model = saturated.model
    assert isinstance(model, Glm53)
    seen: set[float] = set()

    def looked_at(*args: Any) -> torch.Tensor:
        seen.update(args[3].unique().tolist())
        return model.ops.kda_blocks(*args)

    ops = dataclasses.replace(model.ops, kda_blocks=looked_at)
    looking = copy.copy(saturated)
    looking.model = Glm53(model.config, model.weights, ops, saturated.storage.buffers)
    in_pieces(looking, some_tokens(70), [])
    assert seen == {-5.0, 0.0}


@EVERY
@pytest.mark.parametrize("length", [1, 64, 65, 128, 200, 250, 256, 257])
def test_pieces_cut_on_the_grid_equal_the_whole_prompt(
    name: str, length: int, request: pytest.FixtureRequest
) -> None:
    engine = request.getfixturevalue(name)
    tokens = some_tokens(length, seed=3)
    whole = in_pieces(engine, tokens, [])
    places = list(range(GRID, length, GRID))
    for chosen in {(), tuple(places), tuple(places[:1]), tuple(places[-1:]), tuple(places[1::2])}:
        assert equal(in_pieces(engine, tokens, chosen), whole), chosen


@EVERY
def test_a_prompt_in_any_pack_equals_the_prompt_alone(
    name: str, request: pytest.FixtureRequest
) -> None:
    engine: TorchEngine = request.getfixturevalue(name)
    generator = random.Random(7)
    lengths = [1, 2, 3, 19, 63, 64, 65, 70, 127, 128, 129, 300]
    prompts = {length: some_tokens(length, seed=length) for length in lengths}
    wanted = {length: in_pieces(engine, prompts[length], []) for length in lengths}
    for _ in range(14):
        pack = generator.sample(lengths, generator.randint(2, 6))
        seats = [claim(engine, length) for length in pack]
        runs = [Run(prompts[n], seat.lane, 0) for n, seat in zip(pack, seats, strict=True)]
        ran = forward(engine, runs, prompt=True)
        for length, hidden, logits in zip(pack, ran.hidden, ran.logits, strict=True):
            assert torch.equal(hidden, wanted[length].hidden), (length, pack)
            assert torch.equal(logits, wanted[length].logits), (length, pack)
        for seat in seats:
            engine.storage.release(seat)


@EVERY
def test_packs_of_later_pieces_equal_the_pieces_alone(
    name: str, request: pytest.FixtureRequest
) -> None:
    engine: TorchEngine = request.getfixturevalue(name)
    prompts = [some_tokens(length, seed=length) for length in (65, 150, 200, 260)]
    seats = [claim(engine, len(prompt)) for prompt in prompts]
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    for start in range(0, 260, GRID):
        # The pack's order turns from forward to forward.
        live = [who for who, prompt in enumerate(prompts) if start < len(prompt)]
        live = live[start // GRID % len(live) :] + live[: start // GRID % len(live)]
        runs = [Run(prompts[who][start : start + GRID], seats[who].lane, start) for who in live]
        for who, logits in zip(live, forward(engine, runs, prompt=True).logits, strict=True):
            found[who].append(logits)
    for seat in seats:
        engine.storage.release(seat)
    for prompt, logits in zip(prompts, found, strict=True):
        assert torch.equal(torch.cat(logits), in_pieces(engine, prompt, []).logits), len(prompt)


def test_uninitialised_memory_reaches_no_prompt_row(engine: TorchEngine) -> None:
    tokens = some_tokens(150)
    whole = in_pieces(engine, tokens, [])
    with poisoned():
        assert equal(in_pieces(engine, tokens, []), whole)
        assert equal(in_pieces(engine, tokens, [64, 128]), whole)
