"""What a backend is: a device, the engine it gives, and for torch backends its op table.

A backend's plugin object must import without torch, so that `tensorfold plugins` can tell what
works here without loading anything heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tensorfold.core.share import MEET_SECONDS, Share

if TYPE_CHECKING:
    from tensorfold.core.engine_api import Engine
    from tensorfold.core.family_api import Family
    from tensorfold.core.settings import Settings


class Progress(Protocol):
    """Told how far a load is: `step` in words, `done` of `total` (0 when unknown)."""

    def __call__(self, step: str, done: int, total: int) -> None: ...


def no_progress(step: str, done: int, total: int) -> None:
    return None


def seen_by_itself(words: str) -> None:
    """Of a rank that is lost: the next exchange of ranks fails of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where one of several ranks stands, and where they meet: an address of rank 0's host.

    `listener` is a socket that listens there already, by number, for rank 0; with `served` somebody
    else answers there. `local` is the rank's number among those of its own host. `seconds` is how
    long the others are waited for. `lost` is told why a start cannot succeed, on a thread, whatever
    this rank is in: one of them died or stalls.
    """

    share: Share
    host: str
    port: int
    local: int = 0
    listener: int | None = None
    served: bool = False
    seconds: float = MEET_SECONDS
    lost: Callable[[str], None] = seen_by_itself


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOrder:
    """What an engine is asked to be.

    `folder` is the checkpoint's folder and `family` the family that reads it; both are none for a
    backend that needs neither (`needs_family` false). `place` is none for an engine of one rank.
    """

    settings: Settings
    folder: Path | None = None
    family: Family | None = None
    progress: Progress = no_progress
    place: Place | None = None


class Backend(Protocol):
    """A device found through the plugin seam.

    `needs_family`: the engine binds a family to this backend's ops. A backend that needs none
    brings a whole engine, and `bundled` names a folder with the tokenizer and template to serve
    it with.
    """

    name: str
    summary: str
    needs_family: bool

    def unusable(self) -> str | None:
        """Why it cannot run on this machine, in one sentence; none when it can."""
        ...

    def bundled(self) -> Path | None: ...

    def engine(self, order: EngineOrder) -> Engine:
        """Open the engine. Raises `StartError`."""
        ...

    def check(self, report: Callable[[str], None]) -> bool:
        """Run the op contract, one line an op and a SUMMARY line; true when all of it holds."""
        ...


@runtime_checkable
class OfDevices(Protocol):
    """A backend whose ranks have a device each."""

    def devices(self) -> int:
        """How many there are on this host; asked without loading anything heavy."""
        ...
