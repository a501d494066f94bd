"""`tensorfold serve --ranks`: one answer, and one end, however the ranks come to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from openai import APIError, OpenAI

from tests.served.processes import Process, serving

SIZES = ("--lanes", "2", "--context", "512", "--chunk-rows", "512", "--drafts", "2")
# For prompts of many chunks.
LONG = ("--context", "8192")
# Within which a rank's death or stall ends all of them.
END_SECONDS = 10
pytestmark = pytest.mark.timeout(240)


@contextmanager
def ranks(command: list[str], folder: Path, *flags: str) -> Iterator[Process]:
    """A server of two ranks; whatever is left of it at the end is a fault."""
    with serving(command, "--ranks", "2", *SIZES, *flags, folder=folder) as process:
        children = other_ranks(process)
        assert len(children) == 1, children
        yield process
        process.exit_code()
        assert all(gone(child) for child in children), children


def other_ranks(process: Process) -> list[int]:
    own = process.child.pid
    return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def complete(process: Process, **asked: Any) -> Any:
    with process.client() as client:
        body = {"model": process.model, "prompt": "Once", "max_tokens": 16, **asked}
        return client.completions.create(**body)


def receipt(answer: Any) -> tuple[str, str]:
    told = answer.model_extra["tensorfold"]
    return told["engine"], told["token_sha256"]


def test_two_ranks_answer_as_one_and_end_as_one(
    tensorfold_command: list[str], tmp_path: Path
) -> None:
    asked = [{}, {"temperature": 0.8, "seed": 3}, {"prompt": "def f(x):" * 100}]
    # Its index is split from row 2048 on.
    asked.append({"prompt": [300 + row % 7 for row in range(2600)]})
    with serving(tensorfold_command, *SIZES, *LONG, folder=tmp_path) as one:
        alone = [receipt(complete(one, **body)) for body in asked]
    with ranks(tensorfold_command, tmp_path, *LONG) as two:
        assert [receipt(complete(two, **body)) for body in asked] == alone
        assert "/v1" in two.text()
        assert re.findall(r"rank (\d): [\d,]+ bytes of weights", two.text()) == ["0", "1"]
        with urlopen(f"{two.address}/info") as answer:
            told = json.load(answer)
        assert told["ranks"] == len(told["rank_bytes"]) == 2
        two.stop(signal.SIGTERM)
        assert two.exit_code() == 0, two.text()


def ended_within(process: Process, began: float) -> None:
    code = process.exit_code(END_SECONDS + 5)
    assert code == 1, process.text()
    assert time.monotonic() - began < END_SECONDS, process.text()
    assert "the engine is lost: rank 1" in process.text()


def read_to_the_end(
    client: OpenAI, process: Process, prompt: Any, begun: Callable[[], None]
) -> str:
    """A long streamed reply's error; `begun` is called once the request is under way."""
    if isinstance(prompt, str):
        stream = client.completions.create(
            model=process.model,
            prompt=prompt,
            max_tokens=400,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        begun()
        with pytest.raises(APIError) as caught:
            list(stream)
        return str(caught.value)
    begun()
    with pytest.raises(APIError) as caught:
        client.completions.create(model=process.model, prompt=prompt, max_tokens=8)
    return str(caught.value)


KILLED, STOPPED = signal.SIGKILL, signal.SIGSTOP
# Where a forward that waits for a rank waits for ever, as on a device that is not let go.
HELD = """
from datetime import timedelta
from tensorfold.core.engine import gloo
gloo.FORWARD = timedelta(hours=1)
from tensorfold.tools.cli import main
raise SystemExit(main())
"""
# Of a package that is not installed, the checkout is attached first.
ATTACHED = """
import sys
sys.path.insert(0, {folder!r})
import uninstalled
"""


def held(command: list[str]) -> list[str]:
    """The command, with forwards that wait for ever."""
    python, how, *_ = command
    attached = "" if how == "-m" else ATTACHED.format(folder=str(Path(how).parent))
    return [python, "-c", attached + HELD]


@pytest.mark.parametrize(
    ("when", "number"),
    [("round", KILLED), ("fill", KILLED), ("round", STOPPED)],
    ids=["killed in a round", "killed in a fill", "stopped in a round and waited for"],
)
def test_a_rank_that_dies_or_stalls_at_work_ends_all_with_the_reason(
    when: str, number: int, tensorfold_command: list[str], tmp_path: Path
) -> None:
    if number == STOPPED:
        tensorfold_command = held(tensorfold_command)
    flags = LONG if when == "fill" else ()
    with ranks(tensorfold_command, tmp_path, *flags) as process, process.client() as client:
        (other,) = other_ranks(process)
        at: list[float] = []

        def hit() -> None:
            at.append(time.monotonic())
            os.kill(other, number)

        def hit_soon() -> None:
            threading.Timer(0.4, hit).start()

        prompt: Any = "Once" if when == "round" else [300] * 8000
        said = read_to_the_end(client, process, prompt, hit if when == "round" else hit_soon)
        assert "the engine is lost" in said or "rank 1" in said, said
        ended_within(process, at[0])


@pytest.mark.parametrize("number", [KILLED, STOPPED], ids=["killed", "stopped"])
def test_a_rank_that_dies_or_stalls_while_idle_ends_all(
    number: int, tensorfold_command: list[str], tmp_path: Path
) -> None:
    with ranks(tensorfold_command, tmp_path) as process:
        began = time.monotonic()
        os.kill(other_ranks(process)[0], number)
        ended_within(process, began)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_of_the_ranks_drains_as_on_one(
    number: int, tensorfold_command: list[str], tmp_path: Path
) -> None:
    with ranks(tensorfold_command, tmp_path) as process, process.client() as client:
        stream = client.completions.create(
            model=process.model,
            prompt="Once",
            max_tokens=60,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        for pid in (*other_ranks(process), process.child.pid):
            os.kill(pid, number)
        last = list(stream)[-1]
        assert last.choices[0].finish_reason == "length"
        assert process.exit_code() == 0, process.text()


def test_no_rank_outlives_its_launcher(tensorfold_command: list[str], tmp_path: Path) -> None:
    with ranks(tensorfold_command, tmp_path) as process:
        (other,) = other_ranks(process)
        process.stop(signal.SIGKILL)
        process.exit_code()
        end = time.monotonic() + END_SECONDS
        while not gone(other):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_what_cannot_be_cut_is_refused_in_one_sentence(
    tensorfold_command: list[str], tmp_path: Path
) -> None:
    found = subprocess.run(
        [*tensorfold_command, "serve", "--ranks", "8", "--port", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=100,
        check=False,
    )
    assert found.returncode == 2, found.stderr
    first = found.stderr.splitlines()
    words = "tensorfold: --ranks is 8, and num_attention_heads of 4 can be cut in 4 parts"
    assert first == [words], found.stderr
