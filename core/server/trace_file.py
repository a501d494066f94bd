"""The turns' trace: one JSON object a turn, in a file, and the last turns in memory.

An object holds `turn`, `began` and `ended`, the counts `waiting`, `filling` and `live` at its end,
and `forwards`: each with `launched`, `landed`, `rows` and either `pieces` (`stream`, `start`,
`end`) or `windows` (`stream`, `rows`, `tokens` committed). `drafts` has by source, where there
were any, the guesses that have had a row so far and those that came true. Times are of the
host's clock, in seconds. No token ids: a trace tells nothing of what was said.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from itertools import islice
from pathlib import Path

from tensorfold.core.errors import StartError
from tensorfold.core.lane_host.trace import Forward, TurnTrace

LOG = logging.getLogger("tensorfold.server")
# Turns that may wait for a slow disk; those beyond are left out and counted in a line of their own.
MOST_WAITING = 10_000
WRITE_SECONDS = 0.05
# Turns that are remembered.
MOST_TURNS = 1024


class TraceFile:
    """Callable as the host's `Trace`: it leaves the turn to a thread that writes, and returns.

    `left_out` counts the turns that a slow disk could not take; the file tells it as it grows.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise StartError(f"the trace file {path} cannot be written: {error.strerror}") from None
        self.turns: deque[TurnTrace] = deque()
        self.left_out = self.told = 0
        self.broken = False
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.run, name="trace", daemon=True)
        self.thread.start()

    def __call__(self, turn: TurnTrace) -> None:
        if self.broken:
            return
        if len(self.turns) < MOST_WAITING:
            self.turns.append(turn)
        else:
            self.left_out += 1

    def run(self) -> None:
        try:
            # Many at once, unasked: a wake for each turn would cost the engine's thread more.
            while not self.closed.wait(WRITE_SECONDS):
                self.write()
            self.write()
            self.file.close()
        except OSError as error:
            self.broken = True
            LOG.error("the trace ends here: %s", error.strerror)

    def write(self) -> None:
        """Write what is there by now."""
        if not self.turns:
            return
        lines = [json_of(self.turns.popleft()) + "\n" for _ in range(len(self.turns))]
        if self.left_out != self.told:
            self.told = self.left_out
            lines.append(f'{{"left_out":{self.told}}}\n')
        self.file.write("".join(lines))
        self.file.flush()

    def close(self) -> None:
        self.closed.set()
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
    sources = [f'"{name}":[{rows},{true}]' for name, rows, true in turn.drafts if rows]
    drafts = f'"drafts":{{{",".join(sources)}}},' if sources else ""
    return (
        f'{{"turn":{turn.turn},"began":{turn.began:.6f},"ended":{turn.ended:.6f},'
        f'"waiting":{turn.waiting},"filling":{turn.filling},"live":{turn.live},'
        f'{drafts}"forwards":[{forwards}]}}'
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
