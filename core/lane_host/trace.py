"""A turn as data: what ran in it and when, for the trace file and for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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

    `drafts` holds, by source, the guesses that have had a row so far and those that came true; the
    round that landed last may not be counted yet.
    """

    turn: int
    began: float
    ended: float
    forwards: tuple[Forward, ...]
    waiting: int
    filling: int
    live: int
    drafts: tuple[tuple[str, int, int], ...] = ()


# Called on the engine thread at the end of a turn that ran a forward; it must not block.
Trace = Callable[[TurnTrace], None]
