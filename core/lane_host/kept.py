"""The seam for kept states: which positions to keep, what to resume from, what to give up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tensorfold.core.engine_api import Saved
from tensorfold.core.lane_host.stream import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a job's opening asks: positions to keep, and a kept state of an equal beginning."""

    marks: tuple[int, ...] = ()
    resume: Saved | None = None


class Keeper(Protocol):
    """Owns the kept states; called on the engine thread."""

    def plan(self, job: Job) -> Plan:
        """For one try to open this job; asked again at the next try."""
        ...

    def take(self, job: Job, saved: Saved) -> Sequence[Saved]:
        """A new kept state; the answer is what to drop for it, which may be itself."""
        ...

    def oldest(self) -> Saved | None:
        """Give up the oldest kept state, for the host to drop; none when there is none."""
        ...


class KeepNothing:
    def plan(self, job: Job) -> Plan:
        return Plan()

    def take(self, job: Job, saved: Saved) -> Sequence[Saved]:
        return (saved,)

    def oldest(self) -> Saved | None:
        return None
