"""Where a process stands among ranks, as its launcher says, and what is refused at the door."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorfold.core.errors import NotAllReady, StartError
from tensorfold.core.settings import read
from tensorfold.tools import launch
from tensorfold.tools.launch import given_place
from tensorfold.tools.serve import check_ranks

GIVEN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "MASTER_PORT": "7"}


def test_a_rank_is_the_first_of_its_host_where_its_launcher_says_so() -> None:
    place = given_place({**GIVEN, "LOCAL_RANK": "1"})
    assert place is not None
    assert (place.share.rank, place.share.ranks, place.local) == (3, 4, 1)


def test_where_nobody_tells_hosts_apart_there_is_one() -> None:
    place = given_place(GIVEN)
    assert place is not None
    assert place.local == 3


@pytest.mark.parametrize("local", ["4", "-1", "one"])
def test_a_number_that_no_rank_has_is_refused(local: str) -> None:
    with pytest.raises(StartError, match=f"LOCAL_RANK .*{local}"):
        given_place({**GIVEN, "LOCAL_RANK": local})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        *((name, None, f"is [34], and {name} is not set") for name in GIVEN),
        ("MASTER_ADDR", "", "RANK is 3, and MASTER_ADDR is not set"),
        ("WORLD_SIZE", "1", "RANK is 3, and WORLD_SIZE is 1"),
        *(("MASTER_PORT", port, f"MASTER_PORT is {port}, and") for port in ("0", "-1", "65536")),
    ],
)
def test_a_rank_that_is_not_told_where_it_stands_does_not_serve_alone(
    name: str, value: str | None, said: str
) -> None:
    own = {other: told for other, told in GIVEN.items() if other != name}
    with pytest.raises(StartError, match=said):
        given_place(own if value is None else {**own, name: value})


@pytest.mark.parametrize(
    "environ", [{}, {"MASTER_ADDR": "here", "MASTER_PORT": "7"}, {"RANK": "0", "WORLD_SIZE": "1"}]
)
def test_a_process_that_is_the_only_one_is_no_rank(environ: dict[str, str]) -> None:
    assert given_place(environ) is None


def refused(backend: Any, ranks: int) -> str:
    try:
        check_ranks(read({"ranks": ranks}, {}), backend, SimpleNamespace(family=None))  # type: ignore[arg-type]
    except StartError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("devices", "said"), [(1, "1 GPU"), (3, "3 GPUs")])
def test_more_ranks_than_devices_are_refused_by_name_and_number(devices: int, said: str) -> None:
    backend = SimpleNamespace(name="cuda-triton", devices=lambda: devices)
    words = f"--ranks is 4, and backend 'cuda-triton' has {said} here, one a rank"
    assert refused(backend, 4) == words
    assert refused(backend, devices) == ""


def test_a_backend_without_devices_takes_any_number_of_ranks() -> None:
    assert refused(SimpleNamespace(name="cpu-reference"), 8) == ""


ATTACHED = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import uninstalled"
LEAVES = "from tensorfold.tools.launch import leave; print('the last words'); leave(3)"


def left(*lines: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """A process that leaves with a code of 3 after its last words, or runs other lines, whose end
    waits for long."""
    # An interpreter's end runs this: what a device's libraries hold may wait just so.
    held = "import atexit, time; atexit.register(time.sleep, 300)"
    return subprocess.run(
        [sys.executable, "-c", "\n".join((held, ATTACHED, *lines))],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        check=False,
        **how,
    )


def test_a_rank_leaves_with_its_words_whatever_its_libraries_wait_for() -> None:
    done = left(LEAVES, stdout=subprocess.PIPE)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "the last words\n"


def test_a_rank_leaves_with_its_code_where_nobody_takes_its_words() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = left(LEAVES, stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode == 3, done.stderr
    done = left("print = lambda *words: None; sys.stdout = None", LEAVES)
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [("StartError('no')", 2, "rank: no\n"), ("KeyError('no')", 1, "KeyError: 'no'\n")],
)
def test_a_rank_that_is_refused_or_fails_says_why_and_holds_what_it_has(
    error: str, code: int, words: str
) -> None:
    lines = (
        "from tensorfold.core.errors import StartError",
        "from tensorfold.tools.launch import leave, told",
        f"with told('rank', {{}}, leave): raise {error}",
    )
    done = left(*lines)
    assert done.returncode == code, done.stderr
    assert done.stderr.endswith(words), done.stderr
    # Nobody has to take the words.
    assert left("import os; os.close(2)", *lines).returncode == code


def test_a_rank_whose_start_is_lost_ends_at_once_with_its_number_and_why() -> None:
    lines = (
        "import threading, time",
        "from tensorfold.tools.launch import given_place",
        f"place = given_place({GIVEN})",
        "threading.Thread(target=place.lost, args=['rank 1 is silent']).start()",
        "time.sleep(300)",
    )
    done = left(*lines)
    assert (done.returncode, done.stderr) == (2, "tensorfold: rank 3 ends: rank 1 is silent\n")


@contextmanager
def others(monkeypatch: pytest.MonkeyPatch, *lines: str) -> Iterator[launch.Launch]:
    """Rank 0's view of ranks that run a line each."""

    def start(rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", lines[rank - 1]]
        return subprocess.Popen(command, stdin=subprocess.PIPE)

    monkeypatch.setattr(launch, "start", start)
    with launch.launched(1 + len(lines)) as found:
        try:
            yield found
        finally:
            for child in found.children:
                child.kill()
            assert found.place.listener is not None
            os.close(found.place.listener)


KILLED = "import os; os.kill(os.getpid(), 9)"
WAITS = "import sys; sys.stdin.read()"


def test_of_a_rank_that_ended_before_all_were_ready_its_number_and_end_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Those who are refused because of it may have ended before.
    with others(monkeypatch, "raise SystemExit(2)", WAITS, KILLED) as found:
        found.met.set()
        for child in found.children[0::2]:
            child.wait()
        words = "rank 3 ended before it was ready, with status -9"
        assert found.why(NotAllReady("closed by peer")) == words
        assert found.why(StartError("there is no model")) == "there is no model"
    monkeypatch.setattr(launch, "LAST_SECONDS", 0.1)
    with others(monkeypatch, WAITS) as found:
        found.met.set()
        assert found.why(NotAllReady("closed by peer")) == "closed by peer"


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
@pytest.mark.parametrize("how", ["tether(os.environ)", "Agent(os.environ)"])
def test_a_rank_that_is_stopped_ends_with_who_started_it(how: str) -> None:
    stops = f"""
import os, signal, sys, time
from tensorfold.tools.launch import Agent, tether
{how}
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(300)
"""
    starts = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {ATTACHED + stops!r}], stdin=subprocess.PIPE)
time.sleep(300)
"""
    own = {**os.environ, launch.TETHERED: "1", launch.RUN: "none"}
    with subprocess.Popen(
        [sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True, env=own
    ) as parent:
        assert parent.stdout is not None
        rank = int(parent.stdout.readline())
        wait_for(rank, "T")
        parent.kill()
        wait_for(rank, "Z")


ENDS = {
    "a signal": (0, "os.kill(os.getpid(), 15)", "stopped by SIGTERM before it was ready to serve"),
    "another's end": (2, "second.kill()", "rank 2 ended before it was ready, with status -9"),
    "another is stopped": (
        2,
        "second.send_signal(19)",
        "rank 2 has been stopped for 0.5 s before it was ready",
    ),
    "another stalls": (2, "found.place.lost('rank 2 is silent')", "rank 2 is silent"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_start_that_ends_at_once_leaves_no_rank_that_is_busy(how: str) -> None:
    code, happens, words = ENDS[how]
    own = f"""
import os, subprocess, sys, time
from tensorfold.tools import launch
from tensorfold.tools.serve import ending_at_once
launch.LAST_SECONDS, launch.STOPPED_SECONDS = 0.1, 0.5

def start(rank, ranks, port):
    line = "import time; time.sleep(300)" if rank == 1 else "import sys; sys.stdin.read()"
    return subprocess.Popen([sys.executable, "-c", line], stdin=subprocess.PIPE)

launch.start = start
with ending_at_once() as stopping, launch.launched(3) as found:
    stopping.others = found.kill
    first, second = found.children
    print(first.pid, second.pid, flush=True)
    {happens}
    time.sleep(300)
"""
    done = subprocess.run(
        [sys.executable, "-c", ATTACHED + own],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    for pid in map(int, done.stdout.split()):
        wait_for(pid, "Z")
    assert (done.returncode, done.stderr) == (code, f"tensorfold: {words}\n")


def wait_for(pid: int, state: str) -> None:
    """Until a process is in that state, or is no more where it is to be gone."""
    last = time.monotonic() + 5
    found = ""
    while found != state and time.monotonic() < last:
        try:
            found = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            found = "Z"
        time.sleep(0.01)
    if found != state:
        os.kill(pid, signal.SIGKILL)
    assert found == state
