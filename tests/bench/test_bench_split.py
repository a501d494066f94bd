"""The bench of a split index: its ranks have parts of one model; what does not hold is told."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from tensorfold.core.share import Share
from tensorfold.families.glm53.plugin import FAMILY
from tensorfold.tools import widths
from tensorfold.tools.bench_cache import Row
from tensorfold.tools.decode.engines import RandomTensors
from tensorfold.tools.decode.ranked import Spied
from tensorfold.tools.decode.split_figures import ARMS, WHOLE, drifts, judged
from tensorfold.tools.own_command import own_command


@pytest.mark.parametrize("ranks", [2, 4])
def test_random_weights_of_ranks_are_parts_of_the_whole_ones(ranks: int) -> None:
    specs = FAMILY.tensors(FAMILY.config(widths.tiny_glm53(4)))
    how: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
    whole = RandomTensors(specs, **how)
    parts = [
        RandomTensors(specs, share=Share(rank=rank, ranks=ranks), **how) for rank in range(ranks)
    ]
    cut = alone = 0
    for spec in specs:
        own = [part[spec.name] for part in parts if spec.name in part]
        if spec.axis is None:
            assert all(torch.equal(one, whole[spec.name]) for one in own), spec.name
            # An expert is on one of the ranks; all else that is not cut is on each.
            assert len(own) in (1, ranks), spec.name
            alone += len(own) == 1
            continue
        cut += 1
        assert all(one.shape[spec.axis] < spec.shape[spec.axis] for one in own), spec.name
        assert torch.equal(torch.cat(own, spec.axis), whole[spec.name]), spec.name
    assert cut
    assert alone


def test_every_arm_is_run_cold_and_gives_the_same_tokens(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    command = own_command("tensorfold.tools.bench_split")
    flags = "glm53 --widths tiny --backend cpu-reference --ranks 2 --prompts 2304 --chunk 256"
    flags += f" --context 64 --reps 3 --streams 1,2 --output {output}"
    done = subprocess.run(
        [*command, *flags.split()], capture_output=True, text=True, timeout=200, check=False
    )
    # Rounds of a busy machine are not what is asked here.
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(output.read_text())
    held = {check["name"]: check["holds"] for check in found["checks"]}
    assert held["2304 rows: every arm gives the same tokens"], done.stdout
    assert held["2304 rows: every prompt is cold and whole"], done.stdout
    assert found["info"]["ranks"] == 2
    for arm, own in found["prompts"]["2304"].items():
        assert len(own["ttft_s"]) == ARMS.count(arm)
        times = zip(own["ttft_s"], own["prefill_s"], strict=True)
        assert all(first > prefill > 0 for first, prefill in times)
    for own in found["rounds"].values():
        # Two ranks, and three layers with experts; no expert is read of nobody's.
        assert [len(picked) for picked in own["picked"]] == [3, 3]
        assert all(sum(layer) >= 4 for layer in zip(*own["picked"], strict=True))


def test_more_or_other_ranks_than_there_are_are_refused() -> None:
    command = own_command("tensorfold.tools.bench_split")
    done = subprocess.run(
        [*command, "glm53", "--ranks", "0"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--ranks: must be at least 1, not 0" in done.stderr


def row(**changed: Any) -> Row:
    return Row(**{"phase": "first", "prompt": 9, "sha256": "a", "ttft_s": 1.0, **changed})


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"sha256": "b"}, ["same tokens"]),
        ({"cached": 8}, ["cold and whole"]),
        ({"prompt": 8}, ["cold and whole"]),
        ({"failed": "503"}, ["same tokens"]),
    ],
)
def test_what_does_not_hold_is_told(changed: dict[str, Any], missed: list[str]) -> None:
    options = argparse.Namespace(family="glm53", layers=4, ranks=2, chunk=8, context=8)
    rows = {arm: [row(), row()] for arm in dict.fromkeys(ARMS)}
    rows["cost"][1] = row(**changed)
    seconds = {arm: [1.0, 1.0] for arm in rows}
    found = {
        "prompts": {9: {"rows": rows, "index": {WHOLE: 0.5}}},
        "rounds": {1: {"seconds": seconds, "floor": 0.5}},
    }
    outcome = judged(options, found)
    told = [check.name for check in outcome.checks if not check.holds]
    assert len(told) == len(missed)
    assert all(words in name for words, name in zip(missed, told, strict=True))
    seconds["rows"] = [1.01, 1.01]
    assert "rounds of 1" in judged(options, found).checks[-1].name
    assert not judged(options, found).checks[-1].holds
    # What other arms showed is not lost with all replies of the one that they are held against.
    rows[WHOLE] = [row(failed="503"), row(failed="503")]
    lines = judged(options, found).tables[0].rows
    assert [line[3] for line in lines] == ["unmeasured", "unmeasured"]


def test_a_machine_that_gets_slower_moves_no_arm_from_the_other() -> None:
    seconds: dict[str, list[float]] = {arm: [] for arm in dict.fromkeys(ARMS)}
    # Slower by the round, and for a while by half.
    pace = iter(range(1000))
    for turn in range(40):
        slow = 1.5 if 10 <= turn < 25 else 1.0
        for arm in ARMS:
            seconds[arm].append(slow * (1 + next(pace) / 1000) * (1.01 if arm == "rows" else 1))
    found = drifts(seconds)
    assert found[WHOLE] == 0
    assert found["cost"] == pytest.approx(0, abs=1e-9)
    assert found["rows"] == pytest.approx(0.01, abs=1e-9)


def test_experts_of_a_round_are_not_those_of_a_prompt_that_was_captured_behind_it() -> None:
    class Moe(NamedTuple):
        gate_up_EDI: torch.Tensor

    class Layer(NamedTuple):
        mlp: Moe

    layer = Layer(mlp=Moe(gate_up_EDI=torch.zeros(4, 2, 2)))
    model = SimpleNamespace(weights=SimpleNamespace(layers=[layer]))
    device = SimpleNamespace(table=torch.zeros(1))
    spied = Spied(SimpleNamespace(model=model, storage=device), compiled=True)  # type: ignore[arg-type]
    spied.ids += [torch.tensor([[0, 5]] * 2), torch.tensor([[1, 2], [3, 4], [5, 6]] * 4)]
    assert spied.picked(2, 1) == [[1], [1]]
    assert spied.picked(2, 8) == [[3], [3]]
