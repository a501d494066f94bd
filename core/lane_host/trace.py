"""A turn as data: what ran in it and when, for the trace file and for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tensorfold.core.engine_api import Piece, Window


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """One forward: its pieces or its windows. Times are of the host's clock, in seconds.

    `committed` counts the tokens that each window landed, before a reply's end cuts them. A call
    that did nothing is not here.
    """

    launched: float
    landed: float
    pieces: tuple[Piece, ...] = ()
    windows: tuple[Window, ...] = ()
    committed: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnTrace:
    """One turn, from 1; `waiting`, `filling` and `live` are counts at its end.

    `drafts` holds, by source, the guesses that had a row and those that came true, as they were
    counted in this turn: of its round, or of the one before it.
    """

    turn: int
    began: float
    ended: float
    forwards: tuple[Forward, ...]
    waiting: int
    filling: int
    live: int
    drafts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


# Called on the engine thread at the end of a turn that ran a forward; it must not block.
Trace = Callable[[TurnTrace], None]
