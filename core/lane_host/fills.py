"""The next fill: one pure function of the line, the live count, this turn and `Info`.

A *pass* is one prompt's run, a *step* what one pass (or one pack) gets at once, and the *line* the
admitted passes in order. Rows mean rows still to run: what a kept state brought does not count.
Nothing here changes anything or asks a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Protocol

from tensorfold.core.engine_api import Info

WHOLE = "whole"
PIECE = "piece"
DRAINED = "drained"
PACKED = "packed"
CUT_IN = "cut_in"
KINDS = (WHOLE, PIECE, DRAINED, PACKED, CUT_IN)

# What a fresh host has behind it instead of rounds since its last fill step: enough.
ENOUGH = 1 << 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One place in the line: rows `[start, end)` of a prompt are still to run.

    `marks` are the positions where its forwards are cut. `begun` once a step of it has run;
    `overtaken` when, since its last piece, another began in a turn in which it waited.
    """

    stream: int
    start: int
    end: int
    marks: tuple[int, ...] = ()
    begun: bool = False
    overtaken: bool = False

    @property
    def rows(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, slots=True)
class SoFar:
    """This turn's fills so far. `ended`: every pass of the last step went in to its end."""

    steps: int = 0
    rows: int = 0
    ended: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What runs next: `rows` rows of one stream's pass, or several whole passes in one forward."""

    streams: tuple[int, ...]
    rows: int
    kind: str


class NextFill(Protocol):
    """The choice of the next step; none ends the fills of this turn."""

    def __call__(
        self, line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
    ) -> Step | None: ...


def next_fill(
    line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
) -> Step | None:
    """The next step of this turn, or none.

    `rounds_since` counts the rounds since the last fill step of any pass (`ENOUGH` before one).
    """
    if not line:
        return None
    if info.fill_chunks == 0:
        return None if turn.steps >= info.lanes else started(line, 0, False, turn, info)
    if turn.steps and not turn.ended:
        return None
    found = chosen(line, live, rounds_since, info)
    if found is None:
        return None
    place, cuts_in = found
    if turn.steps and not drains(line[place], turn, info):
        return None
    return started(line, place, cuts_in, turn, info)


def chosen(
    line: Sequence[Pass], live: int, rounds_since: int, info: Info
) -> tuple[int, bool] | None:
    """Rules 1 to 4: the place in the line of the next pass, and whether it cuts in."""
    begun = next((place for place, entry in enumerate(line) if entry.begun), None)
    fresh = next((place for place, entry in enumerate(line) if not entry.begun), None)
    if begun is not None and fresh is not None and not line[begun].overtaken:
        small = line[fresh].rows <= info.fill_cut_in
        if small and is_whole(line[fresh], info):
            return fresh, True
    head = 0 if info.fill_many or begun is None else begun
    if not (line[head].begun and live and rounds_since < info.fill_rounds):
        return head, False
    if info.fill_many and fresh is not None and not line[head].overtaken:
        return fresh, False
    return None


def is_whole(entry: Pass, info: Info) -> bool:
    """Not begun, and its first step would end it."""
    return not entry.begun and (info.fill_chunks == 0 or entry.rows <= step_rows(info))


def step_rows(info: Info) -> int:
    return info.fill_chunks * info.chunk_rows


def drains(entry: Pass, turn: SoFar, info: Info) -> bool:
    return is_whole(entry, info) and turn.rows + entry.rows <= info.fill_drain


def started(line: Sequence[Pass], place: int, cuts_in: bool, turn: SoFar, info: Info) -> Step:
    """The step that begins with the pass at `place`: a pack if its neighbours fit beside it."""
    first = line[place]
    members = pack(line, place, cuts_in, turn, info)
    if len(members) > 1:
        streams = tuple(entry.stream for entry in members)
        return Step(streams=streams, rows=sum(entry.rows for entry in members), kind=PACKED)
    rows = first.rows if info.fill_chunks == 0 else min(first.rows, step_rows(info))
    kind = PIECE if first.begun or rows < first.rows else WHOLE
    if kind == WHOLE and cuts_in:
        kind = CUT_IN
    elif kind == WHOLE and turn.steps and info.fill_chunks:
        kind = DRAINED
    return Step(streams=(first.stream,), rows=rows, kind=kind)


def pack(line: Sequence[Pass], place: int, cuts_in: bool, turn: SoFar, info: Info) -> list[Pass]:
    """The pass at `place` and the neighbours behind it that share one forward with it."""
    most = min(info.fill_pack, info.pack_rows)
    if turn.steps and info.fill_chunks:
        most = min(most, info.fill_drain - turn.rows)
    members: list[Pass] = []
    rows = 0
    for entry in islice(line, place, None):
        rows += entry.rows
        if rows > most or not packs(entry, info) or (cuts_in and entry.rows > info.fill_cut_in):
            break
        members.append(entry)
    return members


def packs(entry: Pass, info: Info) -> bool:
    """Whole, a chunk at most, and no mark inside: its rows fit one forward uncut."""
    cut = any(entry.start < mark < entry.end for mark in entry.marks)
    return is_whole(entry, info) and entry.rows <= info.chunk_rows and not cut


def forwards(entry: Pass, rows: int, chunk_rows: int) -> list[tuple[int, int]]:
    """The `[start, end)` of each forward of a step of `rows` rows: cut at chunk ends and marks.

    Chunk ends are counted from the step's first row, so a step of n chunks has no short one first.
    """
    stop = entry.start + rows
    ends = {*range(entry.start + chunk_rows, stop, chunk_rows), stop}
    ends.update(mark for mark in entry.marks if entry.start < mark < stop)
    cuts = [entry.start, *sorted(ends)]
    return list(pairwise(cuts))
