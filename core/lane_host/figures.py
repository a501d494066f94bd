"""A host's figures: where its replies are, what it has done, how fast rows go in."""

from __future__ import annotations

import math
import threading

from tensorfold.core.lane_host.fills import KINDS
from tensorfold.core.lane_host.replies import ENDED, FILLING, LIVE, WAITING, Reply
from tensorfold.core.lane_host.stream import (
    CANCELLED,
    CLOSING,
    END_TOKEN,
    LENGTH,
    STOP,
    HostStats,
)

FINISHED = frozenset({END_TOKEN, STOP, LENGTH})
ABORTED = frozenset({CANCELLED, CLOSING})
# Steps after which older speeds count half: long enough to span the rounds between admissions.
RECENT_STEPS = 32


class Figures:
    """Counters; every move of a reply is one change under `lock`, so that they always add up."""

    def __init__(self, lock: threading.Condition) -> None:
        self.lock = lock
        self.places = {WAITING: 0, FILLING: 0, LIVE: 0, ENDED: 0}
        self.waiting_rows = 0
        self.started = self.finished = self.failed = self.aborted = 0
        self.turns = self.rounds = self.round_rows = self.filled_rows = 0
        self.first_tokens = self.tokens = 0
        self.fills = dict.fromkeys(KINDS, 0)
        self.forced = 0
        self.rounds_by_rows: dict[int, int] = {}
        # Of drafts, by source: their names, rows, rows accepted, faults.
        self.sources: list[str] = []
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        self.faults: dict[str, int] = {}
        self.recent_rows = self.recent_seconds = 0.0
        self.recent_steps = 0

    def arrive(self, reply: Reply) -> None:
        """A reply begins to wait; the caller holds the lock."""
        self.started += 1
        self.places[WAITING] += 1
        self.waiting_rows += len(reply.job.prompt)

    def waiting(self) -> tuple[int, int]:
        """Replies that wait, and their prompt rows."""
        return self.places[WAITING], self.waiting_rows

    def move(self, reply: Reply, place: str) -> None:
        with self.lock:
            if reply.place == WAITING:
                self.waiting_rows -= len(reply.job.prompt)
            self.places[reply.place] -= 1
            self.places[place] += 1
            reply.place = place

    def end(self, reply: Reply, reason: str) -> None:
        with self.lock:
            self.move(reply, ENDED)
            if reason in FINISHED:
                self.finished += 1
            elif reason in ABORTED:
                self.aborted += 1
            else:
                self.failed += 1

    def count_round(self, rows: int) -> None:
        self.rounds += 1
        self.round_rows += rows
        reach = 1 << (rows - 1).bit_length()
        self.rounds_by_rows[reach] = self.rounds_by_rows.get(reach, 0) + 1

    def measure(self, rows: int, steps: int, seconds: float) -> None:
        """A turn in which prompts waited or went in: its rows, steps and length."""
        self.recent_rows += rows
        self.recent_seconds += seconds
        self.recent_steps += steps
        if self.recent_steps >= RECENT_STEPS:
            self.recent_rows /= 2
            self.recent_seconds /= 2
            self.recent_steps //= 2

    def rows_per_second(self) -> float:
        return self.recent_rows / self.recent_seconds if self.recent_seconds > 0 else 0.0

    def retry_after(self) -> int:
        """Whole seconds until the rows waiting now have gone in at the recent speed, 1 at least."""
        speed = self.rows_per_second()
        return max(1, math.ceil(self.waiting_rows / speed)) if speed else 1

    def stats(self, *, alive: bool, closing: bool, lost: str | None) -> HostStats:
        with self.lock:
            return HostStats(
                alive=alive,
                closing=closing,
                lost=lost,
                waiting=self.places[WAITING],
                waiting_rows=self.waiting_rows,
                filling=self.places[FILLING],
                live=self.places[LIVE],
                started=self.started,
                finished=self.finished,
                failed=self.failed,
                aborted=self.aborted,
                turns=self.turns,
                rounds=self.rounds,
                round_rows=self.round_rows,
                filled_rows=self.filled_rows,
                first_tokens=self.first_tokens,
                tokens=self.tokens,
                fills=dict(self.fills),
                forced=self.forced,
                drafted=dict(zip(self.sources, self.drafted, strict=True)),
                accepted=dict(zip(self.sources, self.accepted, strict=True)),
                rounds_by_rows=dict(self.rounds_by_rows),
                drafter_faults=dict(self.faults),
                rows_per_second=self.rows_per_second(),
            )
