"""What a terminal shows: a bar on a long load, one live line; elsewhere plain words."""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tensorfold.core.backend_api import no_progress
from tensorfold.core.lane_host.stream import HostStats
from tensorfold.tools import status_line
from tensorfold.tools.status_line import StatusLine, line, load_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal that draws, and the log's handlers put back after."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def stats(**figures: int) -> HostStats:
    names = "waiting waiting_rows filling live started finished failed aborted turns rounds"
    names += " round_rows filled_rows first_tokens tokens forced"
    zero: dict[str, Any] = dict.fromkeys(names.split(), 0)
    for name in ("fills", "drafted", "accepted", "rounds_by_rows", "drafter_faults"):
        zero[name] = {}
    return HostStats(
        alive=True, closing=False, lost=None, rows_per_second=0.0, **{**zero, **figures}
    )


def test_a_long_load_draws_its_steps_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_line, "PATIENCE_SECONDS", 0.0)
    terminal = Terminal()
    with load_bar(terminal, "Loading a-model") as progress:
        progress("reading weights", 1, 4)
        progress("reading weights", 4, 4)
        progress("checking ops", 0, 0)
    assert "Loading a-model" in terminal.getvalue()


def test_a_short_load_and_one_away_from_a_terminal_draw_nothing() -> None:
    terminal, file = Terminal(), io.StringIO()
    with load_bar(terminal, "Loading a-model") as progress:
        progress("reading weights", 4, 4)
    assert "Loading" not in terminal.getvalue()
    with load_bar(file, "Loading a-model") as progress:
        assert progress is no_progress
    assert file.getvalue() == ""


def test_a_failed_load_gives_the_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_line, "PATIENCE_SECONDS", 0.0)
    terminal = Terminal()

    def load() -> None:
        with load_bar(terminal, "Loading") as progress:
            progress("reading weights", 1, 4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        load()
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert terminal.getvalue().count(hidden) == terminal.getvalue().count(shown) == 1


def test_the_address_is_told_with_a_command_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    file = io.StringIO()
    with StatusLine(file, "info") as status:
        status.ready("http://127.0.0.1:8000")
        status.ready("http://127.0.0.1:9")
        status.show(stats())
    near, far = file.getvalue().splitlines()
    assert near.startswith("Ready at http://127.0.0.1:8000/v1. Try: ")
    assert near.endswith('tensorfold ask "Hello". Ctrl-C ends it.')
    command = near.split("Try: ")[1].split()[0]
    assert shutil.which(command) is not None
    assert 'tensorfold ask "Hello" --base http://127.0.0.1:9.' in far


def test_the_log_goes_to_the_stream_at_its_level() -> None:
    for stream in (io.StringIO(), Terminal()):
        with StatusLine(stream, "warning"):
            logging.getLogger("tensorfold.test").warning("something is odd")
            logging.getLogger("tensorfold.test").info("something is fine")
        assert "something is odd" in stream.getvalue()
        assert "something is fine" not in stream.getvalue()


def test_the_line_shows_the_hosts_figures_on_a_terminal_alone() -> None:
    terminal = Terminal()
    with StatusLine(terminal, "error") as status:
        status.ready("http://127.0.0.1:8000")
        status.show(stats(live=3))
        assert status.status is not None
        assert "3 live" in str(status.status.status)
    assert "Ready at" in terminal.getvalue()


def test_the_line_is_the_figures_and_the_recent_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 2.0, 2.5])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    status = StatusLine(io.StringIO(), "error")
    assert [status.speed_at(stats(tokens=tokens)) for tokens in (50, 100, 900)] == [0.0, 50.0, 50.0]
    figures = stats(live=1, filling=2, waiting=3, finished=4, failed=5, aborted=6)
    assert line(figures, 12.4) == (
        "1 live, 2 filling, 3 waiting, 12 tok/s; 4 finished, 5 failed, 6 aborted"
    )
