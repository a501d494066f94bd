"""The same server under `torchrun`, on one host and on two."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import APIError

from tests.served.processes import Process, serving

SIZES = ("--lanes", "2", "--context", "512", "--chunk-rows", "512", "--drafts", "2")
# Within which the end of one process ends all of them.
END_SECONDS = 10
pytestmark = pytest.mark.timeout(240)


def under(command: list[str], folder: Path, *flags: str) -> list[str]:
    """A command of this interpreter, as `torchrun` starts it; what that keeps is in the folder."""
    assert command[0] == sys.executable, command
    how = ("-m", "torch.distributed.run", "--log-dir", str(folder))
    return [sys.executable, *how, *flags, *command[1:]]


def family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from family(int(child))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_gone(pids: list[int]) -> None:
    """Those that are left none the less are a fault, and are ended."""
    end = time.monotonic() + END_SECONDS
    while not all(map(gone, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    left = [pid for pid in pids if not gone(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def rank_zero(pids: list[int]) -> int:
    """Which of them is rank 0 of a server; a launcher has no rank."""
    (found,) = [
        pid for pid in pids if b"RANK=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ]
    return found


def reply(process: Process) -> str:
    with process.client() as client:
        found = client.completions.create(model=process.model, prompt="Once", max_tokens=8)
        return str(found.choices[0].finish_reason)


def test_no_rank_outlives_torchrun_and_its_readers_get_their_end(
    tensorfold_command: list[str], tmp_path: Path
) -> None:
    command = under(tensorfold_command, tmp_path, "--nproc-per-node", "2")
    with serving(command, *SIZES, folder=tmp_path) as process, process.client() as client:
        pids = list(family(process.child.pid))
        assert len(pids) == 3, pids
        assert reply(process) in ("stop", "length")
        stream = client.completions.create(
            model=process.model,
            prompt="Once",
            max_tokens=400,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        process.stop(signal.SIGKILL)
        try:
            with pytest.raises(APIError, match=r"torchrun has ended|rank 1 has ended"):
                list(stream)
        finally:
            wait_gone(pids)


@contextmanager
def beside(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server's ranks of another host."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    child = subprocess.Popen([*command, "serve", "--port", "0", *SIZES], cwd=folder, env=own)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def test_two_hosts_are_one_engine_and_end_with_rank_zero(
    tensorfold_command: list[str], tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    flags = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1")
    commands = [
        under(tensorfold_command, tmp_path, *flags, "--master-port", port, "--node-rank", str(node))
        for node in range(2)
    ]
    with beside(commands[1], tmp_path) as other:
        with serving(commands[0], *SIZES, folder=tmp_path) as process:
            pids = [*family(process.child.pid), *family(other.pid)]
            assert len(pids) == 4, pids
            assert reply(process) in ("stop", "length")
            os.kill(rank_zero(pids), signal.SIGTERM)
            assert process.exit_code(END_SECONDS) == 0, process.text()
        assert other.wait(END_SECONDS) == 0
        wait_gone(pids)
