"""The turns' trace: one JSON object a line, written by a thread of its own."""

from __future__ import annotations

import dataclasses
import json
import queue
import threading
from pathlib import Path
from typing import Any

from tensorfold.core.errors import StartError
from tensorfold.core.lane_host.trace import TurnTrace


class TraceFile:
    """Callable as the host's `Trace`: it hands the turn over and returns."""

    def __init__(self, path: Path) -> None:
        try:
            self.file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise StartError(f"the trace file {path} cannot be written: {error.strerror}") from None
        self.turns: queue.SimpleQueue[TurnTrace | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.write, name="trace", daemon=True)
        self.thread.start()

    def __call__(self, turn: TurnTrace) -> None:
        self.turns.put(turn)

    def write(self) -> None:
        while (turn := self.turns.get()) is not None:
            self.file.write(json.dumps(dataclasses.asdict(turn), default=plain) + "\n")

    def close(self) -> None:
        self.turns.put(None)
        self.thread.join()
        self.file.close()


def plain(value: Any) -> str:
    """Vocabulary masks are bytes."""
    return bytes(value).hex()
