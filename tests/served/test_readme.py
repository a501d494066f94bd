"""What the README says to type works, word for word."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served.processes import Process, serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PORT = "127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def process(
    tensorfold_command: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("served")
    with serving(tensorfold_command, "tiny-glm53", folder=folder) as found:
        yield found


def address(process: Process) -> str:
    return process.address.removeprefix("http://")


def test_the_first_request_by_curl_is_answered(process: Process) -> None:
    command = next(block for block in blocks("sh") if block.startswith("curl"))
    words = shlex.split(command.replace("\\\n", " ").replace(PORT, address(process)))
    done = subprocess.run([*words, "-sS"], capture_output=True, text=True, timeout=60, check=True)
    reply = json.loads(done.stdout)
    assert reply["choices"][0]["message"]["content"], reply
    assert reply["tensorfold"]["token_sha256"], reply


def test_the_first_request_by_the_openai_package_streams_an_answer(process: Process) -> None:
    (script,) = blocks("python")
    script = script.replace(PORT, address(process))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Ada" in done.stdout, done.stdout
