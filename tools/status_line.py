"""What a person sees on a terminal: a bar while a model loads, one live line while it serves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from tensorfold.core.backend_api import Progress, no_progress
from tensorfold.core.lane_host.stream import HostStats

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.status import Status

# A load that is over sooner shows no bar.
PATIENCE_SECONDS = 0.5


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
    """One line that is redrawn while the server runs; on no terminal only the address is told."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.status: Status | None = None
        self.tokens = 0
        self.at = time.monotonic()

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.status is not None:
            self.status.stop()

    def ready(self, words: str) -> None:
        """Tell that the server serves, and start the line."""
        print(words, file=self.stream, flush=True)
        if self.stream.isatty():
            from rich.console import Console

            self.status = Console(file=self.stream).status("no request yet")
            self.status.start()

    def show(self, stats: HostStats) -> None:
        """Redraw the line from the host's figures; called about once a second."""
        if self.status is None:
            return
        now = time.monotonic()
        speed = (stats.tokens - self.tokens) / max(now - self.at, 1e-3)
        self.tokens, self.at = stats.tokens, now
        self.status.update(
            f"{stats.live} live, {stats.filling} filling, {stats.waiting} waiting, "
            f"{speed:.0f} tok/s; {stats.finished} finished, {stats.failed} failed, "
            f"{stats.aborted} aborted"
        )
