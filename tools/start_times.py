"""How long each part of a start took, told by the steps of its progress."""

from __future__ import annotations

import time

from tensorfold.core.backend_api import Progress, no_progress


class StartTimes:
    """A `Progress` that hands on what it is told and keeps the seconds of each step; what runs
    between two steps counts as the first one's."""

    def __init__(self, inner: Progress = no_progress) -> None:
        self.inner = inner
        self.began = self.at = time.monotonic()
        self.step = "opening"
        self.seconds: dict[str, float] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        if step != self.step:
            self.close(step)
        self.inner(step, done, total)

    def close(self, step: str = "") -> None:
        """End the step that runs; `step` is the next one."""
        now = time.monotonic()
        self.seconds[self.step] = self.seconds.get(self.step, 0.0) + now - self.at
        self.step, self.at = step, now

    def words(self) -> str:
        parts = [f"{step} {spent:.1f}" for step, spent in self.seconds.items() if spent >= 0.05]
        told = f": {', '.join(parts)}" if parts else ""
        return f"started in {self.at - self.began:.1f} s{told}"
