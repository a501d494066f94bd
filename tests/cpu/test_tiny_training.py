"""The training loop learns, keeps its averaged weights and ends by tokens or by the clock."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tensorfold.tools.tiny.corpus import Corpus, Flat
from tensorfold.tools.tiny.glm53 import LINE, Trainee
from tensorfold.tools.tiny.shape import read_shape
from tensorfold.tools.tiny.training import Plan, Stage, rate_at, train

GIVEN = Path(__file__).parents[1] / "data" / "glm53"
CONFIG = json.loads((GIVEN / "ckpt/config.json").read_text("utf-8"))
SHAPE = read_shape(CONFIG)


def repeating(length: int = 4000) -> Flat:
    ids = torch.arange(length, dtype=torch.int32) % 11 + 1
    return Flat(ids=ids, weights=torch.ones(length), starts=torch.arange(0, length - 200, 110))


def plan(seconds: float = 1000.0) -> Plan:
    stages = tuple(
        Stage(rows=2, length=length, pieces=pieces, tokens=tokens, chat_share=0.5,
              long_share=0.5, compiled=False)
        for length, pieces, tokens in ((40, 1, 80 * 25), (72, 2, 288 * 5))
    )  # fmt: skip
    return Plan(stages=stages, rate=5e-3, warm_steps=5, fall=0.4, seconds=seconds, seed=1,
                averaging=0.8)  # fmt: skip


def run(folder: Path, plan: Plan) -> tuple[Trainee, list[dict], int]:
    corpus = Corpus(short=repeating(), long=repeating(), texts=((repeating(), 1.0),))
    trainee, log = Trainee(CONFIG, folder), folder / "log.jsonl"
    trainee.start(1)
    progress, size = train(trainee, LINE, corpus, plan, folder, log)
    assert size == (folder / "model.safetensors").stat().st_size
    return (
        trainee,
        [json.loads(line) for line in log.read_text("utf-8").splitlines()],
        progress.steps,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainee, list[dict], int, Path]:
    folder = tmp_path_factory.mktemp("trained")
    return *run(folder, plan()), folder


def loss_on(trainee: Trainee, ids: Tensor) -> float:
    with torch.no_grad():
        logits = trainee.logits(trainee.hidden(ids[None, :-1]))[0]
    return float(torch.nn.functional.cross_entropy(logits, ids[1:]))


def test_a_repeating_text_is_learned(trained: tuple[Trainee, list[dict], int, Path]) -> None:
    trainee, notes, steps, _ = trained
    assert steps == 30
    assert notes[0]["loss"] > 4
    assert loss_on(trainee, torch.arange(60) % 11 + 1) < 1


def test_the_file_holds_the_weights_as_they_ended(
    trained: tuple[Trainee, list[dict], int, Path],
) -> None:
    trainee, _, _, folder = trained
    saved = load_file(folder / "model.safetensors")
    assert saved.keys() == trainee.official().keys()
    for name, value in trainee.official().items():
        assert torch.equal(saved[name], value.to(saved[name].dtype)), name
    biases = [value for name, value in saved.items() if name.endswith("correction_bias")]
    assert len(biases) == len(SHAPE.dense) - sum(SHAPE.dense) + 1
    assert all(bias.any() for bias in biases)


def test_the_same_seed_trains_the_same_weights(
    trained: tuple[Trainee, list[dict], int, Path], tmp_path: Path
) -> None:
    again, _, _ = run(tmp_path, plan())
    for name, value in trained[0].official().items():
        assert torch.equal(again.official()[name], value), name


def test_the_clock_ends_a_run(tmp_path: Path) -> None:
    _, _, steps = run(tmp_path, plan(seconds=1e-6))
    assert steps == 0


def test_the_rate_warms_stays_and_falls() -> None:
    rates = [rate_at(plan(), step / 100, step) for step in range(100)]
    assert rates[0] < rates[3] < rates[5] == rates[50] == plan().rate
    assert rates[70] > rates[90] > rates[99] >= 0.02 * plan().rate
