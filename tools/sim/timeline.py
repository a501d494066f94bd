"""Who was where and when: the bars of a picture, read off the turns a host ran."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorfold.core.engine_api import Piece, Window
from tensorfold.core.errors import StartError
from tensorfold.core.lane_host.fills import CUT_IN, DRAINED, PACKED, PIECE, WHOLE
from tensorfold.core.lane_host.trace import Forward, TurnTrace

ROUND = "round"
NO_TOKEN = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A stream's part in one forward: lanes count from 0, times are seconds."""

    lane: int
    stream: int
    start: float
    end: float
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """A stream's first and last forward, and how many rows its pieces reach."""

    first: float
    last: float
    rows: int


def lives(turns: Sequence[TurnTrace]) -> dict[int, Life]:
    found: dict[int, Life] = {}
    for turn in turns:
        for forward in turn.forwards:
            ends = {piece.stream: piece.end for piece in forward.pieces}
            ends |= {window.stream: 0 for window in forward.windows}
            for stream, end in ends.items():
                known = found.get(stream)
                found[stream] = Life(
                    first=forward.launched if known is None else known.first,
                    last=forward.landed,
                    rows=max(end, 0 if known is None else known.rows),
                )
    return found


def lanes(known: Mapping[int, Life]) -> dict[int, int]:
    """A row for each stream: the lowest that is free from its first forward to its last."""
    free_from: list[float] = []
    found: dict[int, int] = {}
    for stream, life in sorted(known.items(), key=lambda entry: (entry[1].first, entry[0])):
        lane = next((i for i, until in enumerate(free_from) if until <= life.first), len(free_from))
        free_from[lane:] = [life.last, *free_from[lane + 1 :]]
        found[stream] = lane
    return found


def bars(turns: Sequence[TurnTrace]) -> list[Bar]:
    """One bar a stream and forward, in order of time."""
    known = lives(turns)
    rows = lanes(known)
    begun: set[int] = set()
    found: list[Bar] = []
    for turn in turns:
        steps: set[int] = set()  # streams that had a piece in this turn
        for forward in turn.forwards:
            kinds = kinds_of(forward, known, begun, later=bool(steps))
            steps |= {piece.stream for piece in forward.pieces}
            for piece in forward.pieces:
                begun.add(piece.stream)
                if piece.end == known[piece.stream].rows:
                    begun.discard(piece.stream)
            found += [
                Bar(
                    lane=rows[stream],
                    stream=stream,
                    start=forward.launched,
                    end=forward.landed,
                    kind=kind,
                )
                for stream, kind in kinds.items()
            ]
    return found


def kinds_of(
    forward: Forward, known: Mapping[int, Life], begun: set[int], *, later: bool
) -> dict[int, str]:
    """What each stream of a forward did. `begun` passes wait; `later`: not the turn's first step.

    A trace says what ran, not by which rule: a whole pass counts as cut in when a begun one waits,
    and as drained when another step of its turn ran before it.
    """
    if forward.windows:
        return {window.stream: ROUND for window in forward.windows}
    if len(forward.pieces) > 1:
        return {piece.stream: PACKED for piece in forward.pieces}
    (piece,) = forward.pieces
    whole = piece.stream not in begun and piece.end == known[piece.stream].rows
    if not whole:
        return {piece.stream: PIECE}
    return {piece.stream: CUT_IN if begun else DRAINED if later else WHOLE}


def read_trace(path: Path) -> tuple[TurnTrace, ...]:
    """The turns of a server's trace file, one JSON object a line, or of what `/debug/turns` gave.

    A trace holds no token ids, so the windows that come back hold none either. Raises `StartError`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        entries = [entry for line in lines if line.strip() for entry in entries_of(line)]
        return tuple(turn_of(entry) for entry in entries if "left_out" not in entry)
    except OSError as error:
        raise StartError(f"the trace {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(f"{path} is no trace of turns: {error!r}") from None


def entries_of(line: str) -> list[Mapping[str, Any]]:
    entry = json.loads(line)
    if "turns" in entry:
        return list(entry["turns"])
    return [entry]


def turn_of(entry: Mapping[str, Any]) -> TurnTrace:
    return TurnTrace(
        turn=entry["turn"],
        began=entry["began"],
        ended=entry["ended"],
        forwards=tuple(map(forward_of, entry["forwards"])),
        waiting=entry["waiting"],
        filling=entry["filling"],
        live=entry["live"],
    )


def forward_of(entry: Mapping[str, Any]) -> Forward:
    windows = entry.get("windows", ())
    return Forward(
        launched=entry["launched"],
        landed=entry["landed"],
        pieces=tuple(
            Piece(stream=piece["stream"], start=piece["start"], end=piece["end"])
            for piece in entry.get("pieces", ())
        ),
        windows=tuple(
            Window(stream=window["stream"], tokens=(NO_TOKEN,) * window["rows"])
            for window in windows
        ),
        committed=tuple(window["tokens"] for window in windows),
    )
