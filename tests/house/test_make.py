"""The environment that `make` makes: once, offline when it can, and a clear end when it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.throwaway import CHECKOUT, copied_checkout, throwaway_environment

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}


def make(folder: Path, *arguments: str, python: str = sys.executable) -> tuple[int, str, str]:
    """Exit code, what it printed, and its complaints but for make's own last line."""
    # These tests may themselves run under make, which tells its children so.
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        ["make", f"PYTHON={python}", *arguments],
        cwd=folder,
        env={**own, **OFFLINE},
        text=True,
        capture_output=True,
        check=False,
        timeout=100,
    )
    words = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    return done.returncode, done.stdout, "\n".join(words)


def test_an_interpreter_that_is_too_old_is_told_in_one_sentence(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    pretend = "import sys; sys.version_info = (3, 9, 2, 'final', 0); exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$2"\n')
    old.chmod(0o755)
    code, _, words = make(copied_checkout(tmp_path / "checkout"), "serve", python=str(old))
    assert code == 2
    assert words == (
        f"TensorFold needs Python 3.11 or newer, and {old} is 3.9.2: name another, as in make "
        "PYTHON=python3.12."
    )


def test_an_interpreter_that_is_not_there_is_told_in_one_sentence(tmp_path: Path) -> None:
    code, _, words = make(copied_checkout(tmp_path / "checkout"), "test", python="python-gone")
    assert code == 2
    assert words == "TensorFold needs Python 3.11 or newer, and there is no python-gone."


def test_with_no_network_it_says_what_it_could_not_fetch(tmp_path: Path) -> None:
    checkout = copied_checkout(tmp_path / "checkout")
    throwaway_environment(checkout / ".venv", tmp_path / "needed", without=("rich",))
    code, _, words = make(checkout, "serve")
    assert code == 2
    assert words.startswith("Could not fetch rich==")
    assert words.endswith("is a package index reachable? What pip said is in .venv/install.log.")
    assert len(words.splitlines()) == 1
    assert "rich" in (checkout / ".venv" / "install.log").read_text()
    assert not (checkout / ".venv" / "installed").exists()


@pytest.mark.skipif(
    not (CHECKOUT / ".venv" / "installed").exists(), reason="not the environment that make makes"
)
def test_an_environment_that_has_everything_is_taken_over_offline_and_left_alone_after(
    tmp_path: Path,
) -> None:
    checkout = copied_checkout(tmp_path / "checkout")
    python = throwaway_environment(checkout / ".venv", tmp_path / "needed")
    code, printed, words = make(checkout, "install")
    assert (code, words) == (0, "")
    assert printed == "Installing TensorFold and what it needs into .venv.\n"
    command = [python, "-c", "import tensorfold.core.errors as e; print(e.__file__)"]
    found = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=True)
    assert found.stdout.strip() == str(checkout / "core" / "errors.py")
    assert (checkout / ".venv" / "checkout" / "tensorfold" / "core" / "errors.py").is_file()
    assert "Nothing to be done" in make(checkout, "install")[1]
    # A file that is newer but says the same asks for nothing.
    (checkout / "pyproject.toml").touch()
    assert make(checkout, "install")[:2] == (0, "")
