"""Where a process stands among ranks, as its launcher says, and what is refused at the door."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorfold.core.errors import StartError
from tensorfold.core.settings import read
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


def left(before: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """A process that leaves with a code of 3 after its last words, whose end waits for long."""
    # An interpreter's end runs this: what a device's libraries hold may wait just so.
    held = "import atexit, time; atexit.register(time.sleep, 300)"
    leaves = "from tensorfold.tools.launch import leave; print('the last words'); leave(3)"
    here = Path(__file__).parents[2]
    attached = f"import sys; sys.path.insert(0, {str(here)!r}); import uninstalled"
    return subprocess.run(
        [sys.executable, "-c", "; ".join(filter(None, (held, attached, before, leaves)))],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        check=False,
        **how,
    )


def test_a_rank_leaves_with_its_words_whatever_its_libraries_wait_for() -> None:
    done = left("", stdout=subprocess.PIPE)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "the last words\n"


def test_a_rank_leaves_with_its_code_where_nobody_takes_its_words() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = left("", stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode == 3, done.stderr
    done = left("print = lambda *words: None; sys.stdout = None")
    assert done.returncode == 3, done.stderr
