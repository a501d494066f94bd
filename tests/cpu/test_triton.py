"""Triton's kernels under its interpreter: each file of `tests/interpreter` in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
FILES = sorted((CHECKOUT / "tests" / "interpreter").glob("test_*.py"))


@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kernels_hold_under_the_interpreter(path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
