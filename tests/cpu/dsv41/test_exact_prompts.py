"""Prompts cut anywhere, packed and cut back: a row's bits and the state after it stay the same."""

from __future__ import annotations

import pytest
import torch

from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.replay import replay
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling
from tensorfold.core.family_api import Cut
from tensorfold.core.state_spec import PerToken
from tests.cpu.driving import claim, forward, same_state, some_tokens
from tests.cpu.dsv41.engines import MODES, WINDOW_ROWS, live, opened, state_after
from tests.cpu.test_drafting import job, replies


def test_every_cut_of_a_prompt_leaves_its_rows_and_state_as_they_are(engine: TorchEngine) -> None:
    tokens = some_tokens(96)
    whole = replay(engine, tokens, [Cut("prompt", 96)])
    assert bool(torch.isfinite(whole.logits).all())
    wanted = live(engine, whole.state, 96)
    for cut in range(1, 96):
        ran = replay(engine, tokens, [Cut("prompt", cut), Cut("prompt", 96 - cut)])
        assert torch.equal(ran.logits, whole.logits), cut
        assert same_state(live(engine, ran.state, 96), wanted), cut


@pytest.mark.parametrize("cuts", [[1] * 96, [5, 7, 1, 83], [31, 33, 32], [64, 3, 29], [3] * 32])
@pytest.mark.parametrize("kind", ["prompt", "window"])
def test_many_cuts_equal_the_whole_prompt(engine: TorchEngine, cuts: list[int], kind: str) -> None:
    tokens = some_tokens(96)
    whole = replay(engine, tokens, [Cut("prompt", 96)])
    kinds = [kind if rows <= WINDOW_ROWS else "prompt" for rows in cuts]
    ran = replay(engine, tokens, [Cut(*cut) for cut in zip(kinds, cuts, strict=True)])
    assert torch.equal(ran.logits, whole.logits)
    assert same_state(live(engine, ran.state, 96), live(engine, whole.state, 96))


def test_prompts_of_every_length_agree_on_their_common_rows(engine: TorchEngine) -> None:
    tokens = some_tokens(140)
    whole = replay(engine, tokens, [Cut("prompt", 140)])
    for length in range(1, 140):
        ran = replay(engine, tokens[:length], [Cut("prompt", length)])
        assert torch.equal(ran.logits, whole.logits[:length]), length


def test_rows_of_a_pack_equal_the_prompts_alone(engine: TorchEngine) -> None:
    lengths = (1, 9, 64, 77, 2, 31)
    prompts = [some_tokens(length, seed=length) for length in lengths]
    seats = [claim(engine, length) for length in lengths]
    runs = [Run(prompt, seat.lane, 0) for prompt, seat in zip(prompts, seats, strict=True)]
    packed = forward(engine, runs, prompt=True)
    for prompt, seat, logits in zip(prompts, seats, packed.logits, strict=True):
        state = state_after(engine, seat, len(prompt))
        engine.storage.release(seat)
        alone = replay(engine, prompt, [Cut("prompt", len(prompt))])
        assert torch.equal(logits, alone.logits), len(prompt)
        assert same_state(state, live(engine, alone.state, len(prompt))), len(prompt)


@pytest.fixture(scope="module", params=MODES)
def tight(request: pytest.FixtureRequest) -> TorchEngine:
    """Rings with room for windows of 6 rows and no more."""
    return opened(request.param, lanes=2, context=128, chunk_rows=128, window_rows=6)


@pytest.mark.parametrize("rejected", range(6))
def test_rejected_rows_leave_no_bit_behind(tight: TorchEngine, rejected: int) -> None:
    """A window of 6 cut back, at every place in a pair, a window and a page."""
    engine = tight
    right, wrong, kept = some_tokens(6, seed=7), some_tokens(6, seed=8), 6 - rejected
    after = some_tokens(5, seed=9)
    for length in (1, 2, 3, 6, 7, 8, 9, 14, 15, 21, 58, 59, 60, 61, 62, 63, 64, 65):
        prompt = some_tokens(length, seed=length)
        ran = []
        for drafted in (right[:kept] + wrong[kept:], right[:kept]):
            seat = claim(engine, length + 16)
            forward(engine, [Run(prompt, seat.lane, 0)], prompt=True)
            verified = forward(engine, [Run(drafted, seat.lane, length)], prompt=False)
            state = state_after(engine, seat, length + kept)
            one = forward(engine, [Run(after[:1], seat.lane, length + kept)], prompt=False)
            rest = forward(engine, [Run(after[1:], seat.lane, length + kept + 1)], prompt=False)
            logits = torch.cat([verified.logits[0][:kept], *one.logits, *rest.logits])
            ran.append((logits, state, state_after(engine, seat, length + kept + 5)))
            engine.storage.release(seat)
        (cut, cut_state, cut_end), (pure, pure_state, pure_end) = ran
        assert torch.equal(cut, pure), (length, rejected)
        assert same_state(cut_state, pure_state), (length, rejected)
        assert same_state(cut_end, pure_end), (length, rejected)


@torch.inference_mode()
def test_nothing_of_other_streams_or_of_recycled_storage_comes_in(engine: TorchEngine) -> None:
    tokens = some_tokens(75)
    wanted = replay(engine, tokens, [Cut("prompt", 70), Cut("window", 5)])
    seat = claim(engine, 75)
    kept = {name: buffer.clone() for name, buffer in engine.storage.buffers.items()}
    paged = {entry.name for entry in engine.storage.spec.entries if isinstance(entry, PerToken)}
    for name, buffer in engine.storage.buffers.items():
        own = buffer[seat.lane].clone()
        buffer.fill_(float("nan") if buffer.is_floating_point() else 2**62)
        if name not in paged:
            buffer[seat.lane].copy_(own)
    first = forward(engine, [Run(tokens[:70], seat.lane, 0)], prompt=True)
    second = forward(engine, [Run(tokens[70:], seat.lane, 70)], prompt=False)
    for name, buffer in engine.storage.buffers.items():
        buffer.copy_(kept[name])
    engine.storage.release(seat)
    assert torch.equal(torch.cat([*first.logits, *second.logits]), wanted.logits)


@pytest.mark.parametrize("chunk_rows", [1, 7, 33])
def test_chunks_of_any_size_give_the_same_replies(engine: TorchEngine, chunk_rows: int) -> None:
    numerics = "faithful" if engine.model.config.faithful else "plain"  # type: ignore[attr-defined]
    cut = opened(numerics, chunk_rows=chunk_rows)
    jobs = [
        job(number, some_tokens(length, seed=length), 7, Sampling(temperature=1.0))
        for number, length in enumerate((1, 20, 70, 33))
    ]
    found, wanted = replies(cut, jobs), replies(engine, jobs)
    assert found.tokens == wanted.tokens
    assert found.logprobs == wanted.logprobs
