"""`tensorfold parity` on dsv41's golden: both arithmetics in one command; any change is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tensorfold.families.dsv41.golden import cuts
from tensorfold.tools import parity
from tests.cpu.dsv41.engines import CKPT, GOLDEN


def test_the_golden_agrees_in_every_cut_and_both_arithmetics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parity.main([str(GOLDEN)]) == 0
    said = capsys.readouterr().out
    for cut in cuts(57):
        lines = [line for line in said.splitlines() if f" {cut} " in line]
        assert len(lines) == 2
        assert all(line.count("agree") == 2 for line in lines)
    assert "agrees, tolerance 5e-05 plain and 1e-04 faithful" in said
    assert "lacks" not in said


def test_the_cuts_of_57_rows() -> None:
    found = {name: [cut.rows for cut in runs] for name, runs in cuts(57).items()}
    assert found["pieces of 5, 7, 1"] == [5, 7, 1, 44]
    assert found["pieces of 16, 20"] == [16, 20, 21]
    assert found["windows"] == [21, *[2] * 9, *[3] * 6]
    assert found["token by token"] == [1] * 57
    for length in (1, 5, 22, 60):
        assert all(sum(cut.rows for cut in runs) == length for runs in cuts(length).values())


@pytest.mark.parametrize(
    ("name", "place", "told"),
    [
        ("logits", (30, 5), "1.0e-03"),
        ("logits_faithful", (0, 159), "1.0e-03"),
        ("engram_rows", (12, 1, 5), "engram_rows: 1 of 57 selections differ"),
        ("token_map", (77,), "token_map: state differs by 1.0e+00"),
    ],
)
def test_one_changed_value_disagrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, place: tuple[int, ...], told: str
) -> None:
    golden = load_file(GOLDEN / "golden.safetensors")
    golden[name][place] += 1e-3 if golden[name].is_floating_point() else 1
    (tmp_path / "ckpt").symlink_to(CKPT, target_is_directory=True)
    save_file(golden, tmp_path / "golden.safetensors")
    assert parity.main([str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "DISAGREES" in said
    assert told in said
