"""`tensorfold parity`: agreement is told only of what was compared, and any difference is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tensorfold.core.errors import StartError
from tensorfold.tools import parity
from tests.cpu.driving import CKPT, GOLDEN

Goldens = Callable[[Callable[[dict[str, Tensor]], dict[str, Tensor]]], Path]


@pytest.fixture(scope="session")
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN / "golden.safetensors")


@pytest.fixture
def changed(tmp_path: Path, golden: dict[str, Tensor]) -> Goldens:
    """A folder with the golden model and a changed golden."""

    def make(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
        (tmp_path / "ckpt").symlink_to(CKPT, target_is_directory=True)
        copies = change({name: tensor.clone() for name, tensor in golden.items()})
        save_file(
            {name: tensor.contiguous() for name, tensor in copies.items()},
            tmp_path / "golden.safetensors",
        )
        return tmp_path

    return make


def first_rows(golden: dict[str, Tensor], rows: int = 30) -> dict[str, Tensor]:
    """The golden of a prompt's beginning: what a later row cannot have changed."""
    kept = {"ids": golden["ids"][:, :rows]}
    for name in ("logits", "hidden", "topk.1", "topk.5", "latent.1", "latent.5"):
        kept[name] = golden[name][:rows]
    for name in ("indexer.1", "indexer.5"):
        kept[name] = golden[name][:rows]
    return kept | {"mtp_logits": golden["mtp_logits"][: rows - 1]}


def test_the_golden_agrees_in_every_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main([str(GOLDEN)]) == 0
    said = capsys.readouterr().out
    for cut in ("whole", "pieces", "windows", "token by token"):
        line = next(line for line in said.splitlines() if cut in line)
        assert line.count("agree") == 2
        assert "not compared" not in line
    assert "mtp_logits: largest difference" in said
    assert "agrees, tolerance 5e-05" in said
    assert "lacks" not in said
    assert "DISAGREES" not in said


@pytest.mark.parametrize(
    ("name", "place"),
    [("logits", (17, 3)), ("hidden", (29, 63)), ("mtp_logits", (28, 159)), ("latent.5", (0, 0))],
)
def test_one_changed_value_disagrees(
    changed: Goldens, capsys: pytest.CaptureFixture[str], name: str, place: tuple[int, int]
) -> None:
    def change(golden: dict[str, Tensor]) -> dict[str, Tensor]:
        cut = first_rows(golden)
        cut[name][place] += 1e-3
        return cut

    assert parity.main([str(changed(change))]) == 1
    said = capsys.readouterr().out
    assert "DISAGREES" in said
    assert "1.0e-03" in said
    if "." in name:
        assert f"whole: {name}: state differs by 1.0e-03" in said


def test_one_changed_state_is_named_in_every_cut(
    changed: Goldens, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(golden: dict[str, Tensor]) -> dict[str, Tensor]:
        golden["kda_state.3"][2, 5, 7] += 1e-3
        return golden

    assert parity.main([str(changed(change))]) == 1
    said = capsys.readouterr().out
    for cut in ("whole", "pieces", "windows", "token by token"):
        assert f"{cut}: kda_state.3: state differs by 1.0e-03" in said


def test_one_changed_selection_is_named(
    changed: Goldens, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(golden: dict[str, Tensor]) -> dict[str, Tensor]:
        cut = first_rows(golden)
        row = cut["topk.5"][25]
        unseen = next(token for token in range(26) if token not in row.tolist())
        row[0] = unseen
        return cut

    assert parity.main([str(changed(change))]) == 1
    said = capsys.readouterr().out
    assert "whole: topk.5: 1 of 30 selections differ" in said
    assert "topk.1:" not in said


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_golden_that_is_not_finite_disagrees(
    changed: Goldens, capsys: pytest.CaptureFixture[str], bad: float
) -> None:
    def change(golden: dict[str, Tensor]) -> dict[str, Tensor]:
        cut = {name: first_rows(golden)[name] for name in ("ids", "logits")}
        cut["logits"][3, 3] = bad
        return cut

    assert parity.main([str(changed(change))]) == 1
    assert "DISAGREES" in capsys.readouterr().out


def test_what_a_golden_lacks_is_told_and_never_counts(
    changed: Goldens, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(golden: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: first_rows(golden)[name] for name in ("ids", "logits")}

    assert parity.main([str(changed(change))]) == 0
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if "whole" in line)
    assert line.count("not compared") == 3
    lacking = " ".join(said.split()).split("the golden lacks it: ")[1]
    for name in ("hidden", "topk.1", "kda_state.0", "conv_state.4", "indexer.5", "mtp_logits"):
        assert name in lacking
    assert "logits," not in lacking.replace("mtp_logits", "")


def test_a_part_that_the_model_does_not_have_is_told(
    changed: Goldens, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(
        lambda golden: {
            "ids": golden["ids"][:, :9],
            "logits": golden["logits"][:9],
            "topk.2": golden["topk.1"],
        }
    )
    assert parity.main([str(folder)]) == 0
    assert "not compared, this model has no such part: topk.2" in capsys.readouterr().out


def test_a_golden_of_ids_alone_compares_nothing_and_fails(
    changed: Goldens, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed(lambda golden: {"ids": golden["ids"][:, :20]})
    assert parity.main([str(folder)]) == 1
    said = capsys.readouterr().out
    assert "nothing was compared" in said
    assert "agrees" not in said


WRONG_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "logits": lambda golden: golden[:-1],
    "hidden": lambda golden: golden[:, :-1],
    "topk.1": lambda golden: golden[:-1],
    "latent.1": lambda golden: golden[:, :-1],
    "indexer.1": lambda golden: golden[:-3],
    "indexer.5": lambda golden: golden[:, :40],
    "mtp_logits": lambda golden: golden[1:],
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_a_golden_of_a_wrong_shape_disagrees(
    changed: Goldens, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def change(golden: dict[str, Tensor]) -> dict[str, Tensor]:
        cut = first_rows(golden)
        cut[name] = WRONG_SHAPES[name](cut[name])
        return cut

    assert parity.main([str(changed(change))]) == 1
    said = capsys.readouterr().out
    assert "DISAGREES" in said
    assert name in said if "." in name else "inf" in said


@pytest.mark.parametrize("name", ["kda_state.0", "conv_state.0"])
def test_a_state_of_a_wrong_shape_disagrees(
    changed: Goldens, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def change(golden: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"ids": golden["ids"][:, :9], name: golden[name][:, :1]}

    assert parity.main([str(changed(change))]) == 1
    assert f"whole: {name}: state differs by inf" in capsys.readouterr().out


def test_a_golden_that_is_missing_broken_or_without_ids_is_refused(
    changed: Goldens, tmp_path: Path
) -> None:
    with pytest.raises(StartError, match="there is no golden at"):
        parity.main([str(tmp_path)])
    folder = changed(lambda golden: {"logits": golden["logits"]})
    with pytest.raises(StartError, match="holds no ids"):
        parity.main([str(folder)])
    (folder / "golden.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(StartError, match="not a readable safetensors file"):
        parity.main([str(folder)])


def test_a_backend_without_families_is_refused() -> None:
    with pytest.raises(StartError, match="fake runs no family"):
        parity.main([str(GOLDEN), "--backend", "fake"])


def test_distance_is_infinite_where_nothing_can_be_said() -> None:
    assert parity.distance(torch.zeros(2), torch.zeros(3)) == float("inf")
    assert parity.distance(torch.zeros(2), torch.tensor([0.0, float("nan")])) == float("inf")
    assert parity.distance(torch.full((1,), float("inf")), torch.full((1,), float("inf"))) == float(
        "inf"
    )
    assert parity.distance(torch.ones(2), torch.tensor([1.0, 1.5])) == 0.5
