"""The turns' trace: one JSON object a turn, in a file, and the last turns in memory.

An object holds `turn`, `began` and `ended`, the counts `waiting`, `filling` and `live` at its end,
and `forwards`: each with `launched`, `landed`, `rows` and either `pieces` (`stream`, `start`,
`end`) or `windows` (`stream`, `rows`, `tokens` committed). Times are of the host's clock, in
seconds. No token ids: a trace tells nothing of what was said.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from itertools import islice
from pathlib import Path

from tensorfold.core.errors import StartError
from tensorfold.core.lane_host.trace import Forward, TurnTrace

LOG = logging.getLogger("tensorfold.server")
# Turns that may wait for a slow disk; those beyond are left out and counted in a line of their own.
MOST_WAITING = 10_000
# Turns that are remembered.
MOST_TURNS = 1024


class TraceFile:
    """Callable as the host's `Trace`: it hands the turn to a thread that writes, and returns."""

    def __init__(self, path: Path) -> None:
        try:
            self.file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise StartError(f"the trace file {path} cannot be written: {error.strerror}") from None
        self.turns: queue.SimpleQueue[TurnTrace | None] = queue.SimpleQueue()
        self.left_out = 0
        self.broken = False
        self.thread = threading.Thread(target=self.run, name="trace", daemon=True)
        self.thread.start()

    def __call__(self, turn: TurnTrace) -> None:
        if self.broken:
            return
        if self.turns.qsize() >= MOST_WAITING:
            self.left_out += 1
        else:
            self.turns.put(turn)

    def run(self) -> None:
        try:
            self.write()
            self.file.close()
        except OSError as error:
            self.broken = True
            LOG.error("the trace ends here: %s", error.strerror)

    def write(self) -> None:
        told = 0
        while (turn := self.turns.get()) is not None:
            if self.left_out != told:
                told = self.left_out
                self.file.write(f'{{"left_out":{told}}}\n')
            self.file.write(json_of(turn) + "\n")

    def close(self) -> None:
        self.turns.put(None)
        self.thread.join()


class LastTurns:
    """Callable as the host's `Trace`; any thread may ask for the last turns."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.turns: deque[TurnTrace] = deque(maxlen=MOST_TURNS)

    def __call__(self, turn: TurnTrace) -> None:
        with self.lock:
            self.turns.append(turn)

    def last(self, count: int) -> list[TurnTrace]:
        """The last `count` turns, oldest first."""
        with self.lock:
            newest = list(islice(reversed(self.turns), count))
        return newest[::-1]


def json_of(turn: TurnTrace) -> str:
    forwards = ",".join(map(forward_json, turn.forwards))
    return (
        f'{{"turn":{turn.turn},"began":{turn.began:.6f},"ended":{turn.ended:.6f},'
        f'"waiting":{turn.waiting},"filling":{turn.filling},"live":{turn.live},'
        f'"forwards":[{forwards}]}}'
    )


def forward_json(forward: Forward) -> str:
    if forward.pieces:
        kind = "pieces"
        rows = sum([piece.end - piece.start for piece in forward.pieces])
        parts = [
            f'{{"stream":{piece.stream},"start":{piece.start},"end":{piece.end}}}'
            for piece in forward.pieces
        ]
    else:
        kind = "windows"
        rows = sum([len(window.tokens) for window in forward.windows])
        parts = [
            f'{{"stream":{window.stream},"rows":{len(window.tokens)},"tokens":{tokens}}}'
            for window, tokens in zip(forward.windows, forward.committed, strict=True)
        ]
    return (
        f'{{"launched":{forward.launched:.6f},"landed":{forward.landed:.6f},"rows":{rows},'
        f'"{kind}":[{",".join(parts)}]}}'
    )
