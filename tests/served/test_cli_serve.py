"""The command as a process: it serves, answers, and leaves when it is told to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
ENVIRONMENT["PYTHONWARNINGS"] = "error"

# A backend whose load takes longer than any test; it says when it has begun.
SLOW = """
import importlib.util, sys, time
sys.path.insert(0, sys.argv.pop(1))
importlib.util.find_spec("tensorfold") or __import__("uninstalled")
from types import SimpleNamespace
from tensorfold.plugins.manager import Installed, Offer, discover
from tensorfold.tools import cli, serve

def engine(order):
    print("loading", flush=True)
    exec(sys.argv.pop())

slow = SimpleNamespace(
    name="slow", summary="", needs_family=False, unusable=lambda: None, engine=engine,
    bundled=lambda: __import__("pathlib").Path("."),
)
own = discover()
serve.discover = lambda: Installed(
    backends={"slow": Offer(plugin="slow", value=slow)}, drafters=own.drafters
)
sys.exit(cli.main(["serve", "--backend", "slow", "--port", "0"]))
"""

# Waits in Python, and in a library that no signal's handler interrupts.
WAITS = {
    "asleep": "time.sleep(60)",
    "deaf": "import ctypes; lock = ctypes.CDLL(None).pthread_mutex_lock;"
    "mutex = ctypes.create_string_buffer(64); lock(mutex); lock(mutex)",
}


def started(*command: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)


@pytest.fixture(params=WAITS)
def loading(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A server in the middle of its load."""
    wait = WAITS[request.param]
    with started(sys.executable, "-W", "error", "-c", SLOW, str(CHECKOUT), wait) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("number", "code", "times"),
    [(signal.SIGTERM, 0, 1), (signal.SIGTERM, 0, 2), (signal.SIGINT, 130, 1)],
    ids=["SIGTERM", "SIGTERM twice", "SIGINT"],
)
def test_a_signal_while_loading_ends_at_once_with_one_sentence(
    loading: subprocess.Popen[str], number: signal.Signals, code: int, times: int
) -> None:
    began = time.monotonic()
    for _ in range(times):
        loading.send_signal(number)
    _, words = loading.communicate(timeout=10)
    assert loading.returncode == code
    assert words == f"tensorfold: stopped by {number.name} before it was ready to serve\n"
    assert time.monotonic() - began < 2


class Served:
    """A fake engine's server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], command: list[str]) -> None:
        assert process.stderr is not None
        self.process = process
        self.command = command
        self.words = ""
        while not (found := re.search(r"^Ready at (\S+)/v1", self.words, re.MULTILINE)):
            line = process.stderr.readline()
            assert line, self.words
            self.words += line
        self.base = found[1]

    def ask(self, *arguments: str, base: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, "ask", "--base", base or self.base, *arguments],
            text=True,
            capture_output=True,
            check=False,
            timeout=30,
            env=ENVIRONMENT,
        )

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        _, words = self.process.communicate(timeout=30)
        self.words += words
        return self.process.returncode


Serve = Callable[..., Served]


@pytest.fixture
def serve(tensorfold_command: list[str]) -> Iterator[Serve]:
    processes = []

    def begin(*arguments: str) -> Served:
        command = [*tensorfold_command, "serve", "--backend", "fake", "--port", "0", *arguments]
        processes.append(started(*command))
        return Served(processes[-1], tensorfold_command)

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def test_a_prompt_is_answered_repeatably_and_sigterm_ends_the_server_cleanly(
    serve: Serve,
) -> None:
    server = serve("--name", "a-model")
    first, again, other = (
        server.ask("Hello", "--max-tokens", "12", "--temperature", "1", "--seed", seed)
        for seed in ("1", "1", "2")
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip()
    assert first.stdout == again.stdout != other.stdout
    assert server.end(signal.SIGTERM) == 0
    assert "Traceback" not in server.words


def test_the_receipt_follows_the_reply_when_it_is_asked_for(serve: Serve) -> None:
    server = serve()
    asked = server.ask("Hello", "--max-tokens", "4", "--system", "Be brief.", "--receipt")
    assert asked.returncode == 0, asked.stderr
    assert re.search(r'"token_sha256": "[0-9a-f]{64}"', asked.stdout)
    assert "token_sha256" not in server.ask("Hello", "--max-tokens", "4", "--raw").stdout


def test_a_refused_prompt_and_an_unknown_model_are_told_in_one_sentence(serve: Serve) -> None:
    server = serve()
    for arguments, words in (
        (("Hello", "--model", "nobody"), "the server answered 404: "),
        (("Hello", "--max-tokens", "-1"), "the server answered 400: "),
    ):
        asked = server.ask(*arguments)
        assert asked.returncode == 1
        assert asked.stderr.startswith(f"tensorfold: {words}")
        assert asked.stderr.count("\n") == 1
    assert server.ask("Hello", "--max-tokens", "4", base=f"{server.base}/v1").returncode == 0


def test_a_second_server_on_the_same_port_is_refused(
    serve: Serve, tensorfold_command: list[str]
) -> None:
    port = serve().base.rpartition(":")[2]
    second = started(*tensorfold_command, "serve", "--backend", "fake", "--port", port)
    _, words = second.communicate(timeout=30)
    assert second.returncode == 2
    assert words == f"tensorfold: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


def test_ctrl_c_ends_the_server_cleanly(serve: Serve) -> None:
    server = serve()
    assert server.end(signal.SIGINT) == 0
    assert "Traceback" not in server.words


@pytest.mark.parametrize(
    ("base", "code", "words"),
    [
        ("http://127.0.0.1:1", 1, "no server answers at http://127.0.0.1:1: "),
        ("127.0.0.1:1", 1, "no server answers at 127.0.0.1:1: "),
        ("ftp://x", 2, "--base must be an address such as http://127.0.0.1:8000, not 'ftp://x'"),
        ("http://x:port", 2, "--base http://x:port has no usable port"),
    ],
)
def test_a_server_that_is_not_there_is_told_in_one_sentence(
    tensorfold_command: list[str], base: str, code: int, words: str
) -> None:
    process = started(*tensorfold_command, "ask", "Hello", "--base", base)
    printed, said = process.communicate(timeout=30)
    assert (process.returncode, printed) == (code, "")
    assert said.startswith(f"tensorfold: {words}")
    assert said.count("\n") == 1
