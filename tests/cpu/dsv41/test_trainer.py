"""The trainer's own deepseek_v41 model against the given reference and against the family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.state import allocate
from tensorfold.families.dsv41.draft import Dspark
from tensorfold.families.dsv41.model import Dsv41
from tensorfold.families.dsv41.plugin import FAMILY
from tensorfold.tools.tiny.corpus import Corpus, Flat
from tensorfold.tools.tiny.dsv41.line import LINE, Trainee, wanted
from tensorfold.tools.tiny.lines import load_official
from tensorfold.tools.tiny.training import Plan, Stage, train
from tests.cpu.dsv41.engines import GOLDEN, opened
from tests.cpu.dsv41.test_dspark import drafting_checkpoint

IDS = load_file(GOLDEN / "golden.safetensors")["ids"].flatten()
ANCHORS = (1, 2, 7, 8, 9, 30, 51)


def trainee_of(folder: Path) -> Trainee:
    trainee = Trainee(json.loads((folder / "config.json").read_text("utf-8")), folder)
    load_official(trainee.official(), load_file(folder / "model.safetensors"))
    return trainee


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafting_checkpoint(tmp_path_factory.mktemp("drafting"))


@pytest.fixture(scope="module")
def trainee(folder: Path) -> Trainee:
    return trainee_of(folder)


@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_logits_are_the_references(trainee: Trainee, training: bool) -> None:
    golden = load_file(GOLDEN / "golden.safetensors")
    trainee.model.train(training)
    logits = trainee.logits(trainee.model(IDS[None].long()).hidden_BTD)[0]
    assert (logits - golden["logits"]).abs().max() <= 5e-5


@torch.inference_mode()
def family_drafts(folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    """The family's drafts at the anchors: tokens [A, K], logits [A, K, V], confidence [A, K]."""
    engine = opened("plain", folder)
    model = engine.model
    assert isinstance(model, Dsv41)
    spec = FAMILY.state_spec(model.config, window_rows=6, drafts=True)
    storage = allocate(spec, lanes=1, context=128, kept_bytes=0, device=torch.device("cpu"))
    drafter = Dspark(model.config, model.weights, model.ops, storage.buffers, model)
    model = Dsv41(model.config, model.weights, model.ops, storage.buffers)
    drafter.model = model
    found = []
    for anchor in ANCHORS:
        seat = storage.claim(100)
        run = Run(IDS[:anchor].tolist(), seat.lane, 0)
        rows = batch.build([run], storage, prompt=True, tile=1, context=128)
        model.prompt(rows)
        drafter.follow(rows)
        tokens_1K = drafter.tokens(IDS[anchor : anchor + 1].long())
        block = Run(tokens_1K[0].tolist(), seat.lane, anchor)
        rows = batch.build([block], storage, prompt=False, tile=1, context=128)
        found.append(drafter.draft(rows))
        storage.release(seat)
    tokens, logits, confidence = (torch.cat(parts) for parts in zip(*found, strict=True))
    return tokens, logits, confidence


@torch.no_grad()
def test_drafts_and_their_confidence_are_the_families(trainee: Trainee, folder: Path) -> None:
    tokens, logits, confidence = family_drafts(folder)
    trainee.model.eval()
    ids = IDS[None].long()
    ran = trainee.model(ids)
    hidden, _ = trainee.model.blocks(ids, ran.taps_BTE, torch.tensor([ANCHORS]))
    before = torch.cat([IDS[list(ANCHORS)][:, None].long(), tokens[:, :-1]], 1)
    drafted = trainee.model.drafter(hidden, before, trainee.model.head.weight)
    assert (drafted.logits_RKV - logits).abs().max() <= 5e-5
    assert (drafted.confidence_RK - confidence).abs().max() <= 5e-5


@pytest.mark.parametrize("part", ["main", "drafts"])
def test_every_weight_of_a_part_learns_and_no_other(trainee: Trainee, part: str) -> None:
    ids = IDS[None].long()
    losses = trainee.losses(ids, torch.ones(ids.shape), part, compiled=False)
    (losses.main + losses.draft + losses.ranking * (part == "main")).backward()
    learns = {name for name, p in trainee.model.named_parameters()
              if p.grad is not None and p.grad.any()}  # fmt: skip
    trainee.model.zero_grad(set_to_none=True)
    assert learns == {name for name, _ in trainee.learners(part)}


def test_the_drafter_is_trained_beside_a_model_that_stays_as_it_is(
    folder: Path, tmp_path: Path
) -> None:
    flat = Flat(ids=IDS.int().repeat(4), weights=torch.ones(4 * len(IDS)), starts=torch.tensor([0]))
    corpus = Corpus(short=flat, long=flat, texts=((flat, 1.0),))
    stage = Stage(rows=2, length=40, pieces=1, tokens=400, chat_share=1.0, long_share=0.0,
                  compiled=False)  # fmt: skip
    trainee = trainee_of(folder)
    before = {name: value.clone() for name, value in trainee.official().items()}
    plan = Plan(stages=(stage,), rate=3e-3, warm_steps=1, fall=0.4, seconds=1000.0, seed=1,
                part="drafts")  # fmt: skip
    progress, _ = train(trainee, LINE, corpus, plan, tmp_path, tmp_path / "log.jsonl")
    assert progress.steps == 5
    for name, value in trainee.official().items():
        assert torch.equal(value, before[name]) is not name.startswith("mtp."), name
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == before.keys()
    for name, value in saved.items():
        assert value.dtype == (torch.float32 if name.endswith(LINE.fp32) else torch.bfloat16)
        assert torch.equal(value, trainee.official()[name].to(value.dtype)), name


def test_a_draft_counts_where_all_before_it_are_the_models_own() -> None:
    ids = torch.arange(12)[None]
    own = ids + 1
    own[0, 5] = 99  # after row 5 the model would say another word than the text
    found = wanted(ids, own, torch.ones(ids.shape), torch.tensor([[3, 4]]), 5)
    assert found.before_RK.tolist() == [[3, 4, 5, 6, 7], [4, 5, 6, 7, 8]]
    assert found.own_RK.tolist() == [[4, 5, 99, 7, 8], [5, 99, 7, 8, 9]]
    assert found.counts_RK.tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    assert found.weight_RK[0].tolist() == pytest.approx([1, 0.8, 0.64, 0, 0])
