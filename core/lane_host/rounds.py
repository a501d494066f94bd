"""The windows of one round: a pure function of the live streams and `Info`.

Every stream's row 0 comes before anyone's guess. When even those do not fit into
`Info.round_rows`, the least recently served streams go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tensorfold.core.engine_api import Info, Window


class Seat(Protocol):
    """What a round needs to know of a live stream; `left` tokens may still be committed.

    `served` is the number of the last round that it was in, `draws` whether it wants drafts.
    """

    @property
    def stream(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def guesses(self) -> tuple[int, ...]: ...
    @property
    def left(self) -> int: ...
    @property
    def served(self) -> int: ...
    @property
    def draws(self) -> bool: ...


def windows(seats: Sequence[Seat], info: Info) -> list[Window]:
    """One window a stream that takes part, in the order of `seats`."""
    counts = [num_guesses(seat, info) if seat.guesses else 0 for seat in seats]
    if len(seats) + sum(counts) > info.round_rows:
        counts = shared(seats, counts, info.round_rows)
    return [
        window(seat, count, info) for seat, count in zip(seats, counts, strict=True) if count >= 0
    ]


def num_guesses(seat: Seat, info: Info) -> int:
    """Guesses worth a row: what is left bounds them, since the token after them counts too."""
    return max(0, min(len(seat.guesses), info.window_rows - 1, seat.left - 1))


def window(seat: Seat, count: int, info: Info) -> Window:
    tokens = (seat.pending, *seat.guesses[:count]) if count else (seat.pending,)
    if info.drafts and seat.draws:
        return Window(stream=seat.stream, tokens=tokens, want=wanted(seat.left - 1, info))
    return Window(stream=seat.stream, tokens=tokens)


def wanted(left: int, info: Info) -> int:
    """Drafts to ask for, when `left` tokens may be committed after the coming one."""
    return max(0, min(info.drafts, info.window_rows - 1, left - 1))


def shared(seats: Sequence[Seat], counts: Sequence[int], round_rows: int) -> list[int]:
    """Guesses a stream when not all fit, -1 for a stream that sits this round out.

    Least recently served first, ties in the order of `seats`; guesses are dealt out one depth at
    a time, because an early guess is likelier to be accepted than a late one.
    """
    order = sorted(range(len(seats)), key=lambda place: seats[place].served)
    granted = [-1] * len(seats)
    rows = round_rows
    for place in order[:round_rows]:
        granted[place], rows = 0, rows - 1
    for depth in range(1, max(counts) + 1):
        for place in order[:round_rows]:
            if rows and counts[place] >= depth:
                granted[place], rows = depth, rows - 1
    return granted
