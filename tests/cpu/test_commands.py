"""Every command takes its arguments from the `tensorfold` command, and tells a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorfold.tools import cli


@pytest.mark.parametrize("name", cli.TOOLS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: tensorfold {name}")


@pytest.mark.parametrize("name", cli.TOOLS)
def test_every_command_refuses_a_flag_that_it_lacks_in_one_sentence(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--no-such-flag"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("tensorfold: ")
    assert told.endswith(f"(tensorfold {name} --help tells more)\n")


@pytest.mark.parametrize("name", ["parity", "eval"])
def test_a_folder_with_nothing_to_judge_is_refused_in_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("tensorfold: ")
    assert str(tmp_path) in told
    assert told.count("\n") == 1
