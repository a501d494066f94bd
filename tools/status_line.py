"""What a person sees on a terminal: a bar while a model loads, one live line while it serves."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from tensorfold.core.backend_api import Progress, no_progress
from tensorfold.core.lane_host.stream import HostStats
from tensorfold.tools.ask import BASE

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.status import Status

# A load that is over sooner shows no bar.
PATIENCE_SECONDS = 0.5
# The speed is told over this long.
SPEED_SECONDS = 1.0


def typed_command() -> str:
    """What a person types here to run this installation's command."""
    script = Path(sys.executable).with_name("tensorfold")
    found = shutil.which("tensorfold")
    if not script.exists() or (found is not None and Path(found) == script):
        return "tensorfold"
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)


class LoadBar:
    """A `Progress` drawn as one bar; each new step starts it afresh."""

    def __init__(self, bar: RichProgress, title: str) -> None:
        self.bar = bar
        self.title = title
        self.task: TaskID | None = None
        self.step = ""
        self.began = time.monotonic()

    def __call__(self, step: str, done: int, total: int) -> None:
        if self.task is None:
            if time.monotonic() - self.began < PATIENCE_SECONDS:
                return
            self.task = self.bar.add_task(self.title, total=None)
            self.bar.start()
        if step != self.step:
            self.step = step
            self.bar.reset(self.task)
        description = f"{self.title}: {step}"
        self.bar.update(self.task, description=description, completed=done, total=total or None)


@contextmanager
def load_bar(stream: TextIO, title: str) -> Iterator[Progress]:
    """A progress bar on a terminal, silence elsewhere."""
    if not stream.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    bar = RichProgress(console=Console(file=stream), transient=True)
    try:
        yield LoadBar(bar, title)
    finally:
        bar.stop()


class StatusLine:
    """The server's log and, on a terminal, one line below it that is redrawn while it runs."""

    def __init__(self, stream: TextIO, level: str) -> None:
        self.stream = stream
        self.level = level.upper()
        self.status: Status | None = None
        self.tokens = 0
        self.at = time.monotonic()
        self.speed = 0.0

    def __enter__(self) -> StatusLine:
        handler: logging.Handler = logging.StreamHandler(self.stream)
        words = "%(asctime)s %(levelname)s %(message)s"
        if self.stream.isatty():
            from rich.console import Console
            from rich.logging import RichHandler

            # The log goes through the line's own console, which keeps the two apart.
            console = Console(file=self.stream)
            handler, words = RichHandler(console=console, show_path=False), "%(message)s"
            self.status = console.status("loaded")
        handler.setFormatter(logging.Formatter(words))
        logging.basicConfig(level=self.level, handlers=[handler], force=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.status is not None:
            self.status.stop()

    def ready(self, address: str) -> None:
        """Tell where the server listens, and start the line."""
        base = "" if address == BASE else f" --base {address}"
        print(
            f'Ready at {address}/v1. Try: {typed_command()} ask "Hello"{base}. Ctrl-C ends it.',
            file=self.stream,
            flush=True,
        )
        if self.status is not None:
            self.status.start()

    def show(self, stats: HostStats) -> None:
        """Redraw the line from the host's figures, a few times a second."""
        if self.status is not None:
            self.status.update(line(stats, self.speed_at(stats)))

    def speed_at(self, stats: HostStats) -> float:
        """Tokens a second, worked out anew about once a second."""
        now = time.monotonic()
        if now - self.at >= SPEED_SECONDS:
            self.speed = (stats.tokens - self.tokens) / (now - self.at)
            self.tokens, self.at = stats.tokens, now
        return self.speed


def line(stats: HostStats, speed: float) -> str:
    """The host's figures in a line."""
    drafted, accepted = sum(stats.drafted.values()), sum(stats.accepted.values())
    drafts = f"; drafts {accepted / drafted:.0%} accepted" if drafted else ""
    return (
        f"{stats.live} live, {stats.filling} filling, {stats.waiting} waiting, {speed:.0f} tok/s; "
        f"{stats.finished} finished, {stats.failed} failed, {stats.aborted} aborted{drafts}"
    )
