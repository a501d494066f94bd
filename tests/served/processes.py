"""A real server process, and real `openai` clients of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import AsyncOpenAI, OpenAI

START_SECONDS = 100
ADDRESS = re.compile(r"http://[^\s]+:\d+")


@dataclass(kw_only=True, slots=True)
class Process:
    """A running server. `output` is what it has written to stderr and stdout, line by line."""

    child: subprocess.Popen[str]
    output: list[str]
    address: str = ""
    model: str = ""

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.address}/v1", api_key="none", max_retries=0)

    def async_client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.address}/v1", api_key="none", max_retries=0)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.child.send_signal(number)

    def exit_code(self, seconds: float = 30) -> int:
        return self.child.wait(seconds)

    def text(self) -> str:
        return "".join(self.output)


@contextmanager
def serving(command: list[str], *arguments: str, folder: Path) -> Iterator[Process]:
    """`tensorfold serve` with a port of its own, ready; killed at the end if it still runs."""
    child = subprocess.Popen(
        [*command, "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("TF_")},
    )
    process = Process(child=child, output=[])
    reader = threading.Thread(target=take_output, args=(process,), daemon=True)
    reader.start()
    try:
        wait_ready(process)
        with process.client() as client:
            process.model = client.models.list().data[0].id
        yield process
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        reader.join()
        assert child.stdout is not None
        child.stdout.close()


def take_output(process: Process) -> None:
    assert process.child.stdout is not None
    for line in process.child.stdout:
        process.output.append(line)
        if not process.address and (found := ADDRESS.search(line)):
            process.address = found.group()


def wait_ready(process: Process) -> None:
    end = time.monotonic() + START_SECONDS
    while not process.address:
        assert process.child.poll() is None, process.text()
        assert time.monotonic() < end, process.text()
        time.sleep(0.01)
