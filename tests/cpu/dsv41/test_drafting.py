"""Blocks of drafts change how many rounds a reply takes, and no byte of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.state import allocate
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Sampling, Window
from tensorfold.families.dsv41.draft import Dspark
from tensorfold.families.dsv41.model import Dsv41
from tensorfold.families.dsv41.plugin import FAMILY
from tests.cpu.driving import some_tokens
from tests.cpu.dsv41.engines import opened
from tests.cpu.dsv41.test_dspark import drafting_checkpoint
from tests.cpu.steps import self_drafted
from tests.cpu.test_drafting import job, replies

HOW = (Sampling(), Sampling(temperature=1.0, top_p=0.9), Sampling(temperature=0.7, top_k=20))
SIZES = {"lanes": 4, "context": 128, "chunk_rows": 128, "window_rows": 6}


@pytest.fixture(scope="module", params=["random", "knowing"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TorchEngine, TorchEngine]:
    """Without drafts and with five a round. A knowing drafter repeats what the model says: both
    have one token that always wins."""
    folder = drafting_checkpoint(tmp_path_factory.mktemp(request.param))
    if request.param == "knowing":
        tensors = load_file(folder / "model.safetensors")
        for name in ("norm.weight", "mtp.2.norm.weight", "mtp.2.markov_head.embed.weight"):
            tensors[name] = tensors[name] * 0
        save_file(tensors, folder / "model.safetensors")
    return opened("plain", folder, **SIZES), opened("plain", folder, drafts=5, **SIZES)


def test_drafted_replies_equal_undrafted_ones_alone_and_together(
    engines: tuple[TorchEngine, TorchEngine],
) -> None:
    drafted_as_undrafted(*engines)


def test_a_target_that_rounds_rows_before_products_keeps_its_replies_under_drafts(
    tmp_path: Path,
) -> None:
    """As a quantised release does, where kernels chosen by rows would part."""
    folder = drafting_checkpoint(tmp_path)
    drafted_as_undrafted(
        opened("faithful", folder, **SIZES), opened("faithful", folder, drafts=5, **SIZES)
    )


def drafted_as_undrafted(plain: TorchEngine, drafting: TorchEngine) -> None:
    jobs = [
        job(number, some_tokens(length, seed=length), 14, HOW[number % 3])
        for number, length in enumerate((1, 8, 21, 62, 30, 7))
    ]
    wanted = [replies(plain, [one]) for one in jobs]
    together = replies(drafting, jobs)
    for one, alone in zip(jobs, wanted, strict=True):
        by_itself = replies(drafting, [one])
        for found in (together, by_itself):
            assert found.tokens[one.stream] == alone.tokens[one.stream]
            assert found.logprobs[one.stream] == alone.logprobs[one.stream]


def test_a_reply_up_to_the_contexts_end_is_drafted_no_further(
    engines: tuple[TorchEngine, TorchEngine],
) -> None:
    plain, drafting = engines
    for length, most in ((100, 28), (120, 8), (127, 1)):
        one = job(length, some_tokens(length), most, HOW[0])
        assert replies(drafting, [one]).tokens == replies(plain, [one]).tokens


@pytest.mark.parametrize("how", HOW)
def test_a_drafter_that_knows_is_accepted(
    engines: tuple[TorchEngine, TorchEngine], how: Sampling
) -> None:
    """Of equal logits, noise alone tells tokens: a draft needs that of its own position."""
    made, drafted, accepted = self_drafted(engines[1], how, 10)
    assert drafted == 50
    knows = bool(engines[1].model.weights.norm.eq(0).all())  # type: ignore[attr-defined]
    assert (accepted == drafted) is knows
    assert (made == 61) is knows


@torch.inference_mode()
def from_scratch(engine: TorchEngine, tokens: Sequence[int]) -> list[int]:
    """Drafts after all but the last of these tokens ran as one prompt."""
    model = engine.model
    assert isinstance(model, Dsv41)
    spec = FAMILY.state_spec(model.config, window_rows=6, drafts=True)
    storage = allocate(spec, lanes=1, context=128, kept_bytes=0, device=torch.device("cpu"))
    own = Dsv41(model.config, model.weights, model.ops, storage.buffers)
    drafter = Dspark(model.config, model.weights, model.ops, storage.buffers, own)
    lane, length = storage.claim(128).lane, len(tokens) - 1
    rows = batch.build(
        [Run(tokens[:-1], lane, 0)], storage, prompt=True, tile=engine.tile, context=128
    )
    own.prompt(rows)
    drafter.follow(rows)
    run = Run(drafter.tokens(torch.tensor(tokens[-1:]))[0].tolist(), lane, length)
    rows = batch.build([run], storage, prompt=False, tile=engine.tile, context=128)
    return drafter.draft(rows).tokens_BK[0].tolist()


@pytest.mark.parametrize("length", [1, 7, 8, 40])
def test_after_rejected_rows_drafts_are_those_of_a_fresh_stream(
    engines: tuple[TorchEngine, TorchEngine], length: int
) -> None:
    _, engine = engines
    prompt = tuple(some_tokens(length))
    engine.open(Opening(stream=1, prompt=prompt, most=40))
    (filled,) = engine.fill([Piece(stream=1, start=0, end=length, want=5)]).land()
    assert filled.token is not None
    said, drafts = [*prompt, filled.token], filled.drafts
    for number in range(6):
        assert list(drafts) == from_scratch(engine, said), number
        # Guesses of which none, or those of the drafter, are right.
        guesses = drafts if number % 2 else tuple((draft + 1) % 160 for draft in drafts)
        window = Window(stream=1, tokens=(said[-1], *guesses), want=5)
        (landed,) = engine.round([window]).land()
        said += landed.tokens
        drafts = landed.drafts
        assert all(0 < chance < 1 for chance in landed.chances)
    engine.close(1)
