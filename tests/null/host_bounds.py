"""How long anyone may wait, and must, by the words of the turn: judged from an engine's calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorfold.backends.fake.options import Call
from tensorfold.core.engine_api import Info
from tensorfold.core.lane_host.stream import Job, nothing


@dataclass(kw_only=True, slots=True)
class Waiter:
    """A pass that is open: `since` this round it waits for a step, for `bound` rounds at most."""

    end: int
    since: int
    bound: int
    at: int = 0
    begun: bool = False

    @property
    def rows(self) -> int:
        return self.end - self.at


class Bounds:
    """`broken` lists every wait that was too long."""

    def __init__(self, info: Info, jobs: Mapping[int, Job]) -> None:
        self.info = info
        self.jobs = jobs
        self.rounds = 0
        self.passes: dict[int, Waiter] = {}  # open and not in, in order of admission
        self.widest = 1  # rows of a stream that no round leaves out
        self.live: dict[int, int] = {}  # rows filled since the stream's last round, or its pass
        self.stepped = -(1 << 60)  # the round after which the last step ran
        self.this_turn: list[int] = []  # streams that were filled in it
        self.broken: list[str] = []

    # -- the bounds ----------------------------------------------------------------------------

    def most_rows(self) -> int:
        """Rows that may be filled between two rounds of a live stream, with CHUNKS."""
        info = self.info
        largest = max(info.fill_chunks * info.chunk_rows, min(info.fill_pack, info.pack_rows))
        # When not every stream fits into a round, the least recently served go first.
        rounds = -(-info.lanes // min(info.lanes, info.round_rows // self.widest))
        return rounds * max(info.fill_drain, largest)

    def held(self) -> int:
        """Rounds until a begun pass is due: with CUT_IN another may begin once before it."""
        rounds = max(1, self.info.fill_rounds)
        return 2 * rounds if self.info.fill_cut_in else rounds

    def next_step(self) -> int:
        """Rounds between two steps of a begun pass."""
        info = self.info
        if info.fill_many:
            return info.lanes * max(1, info.fill_rounds) + bool(info.fill_cut_in)
        return self.held()

    def first_step(self, rows: int) -> int:
        """Rounds until a pass of that many rows begins that is admitted now."""
        info = self.info
        if not info.fill_chunks:
            return 1
        if info.fill_many:
            return self.next_step()
        step = info.fill_chunks * info.chunk_rows
        ahead = sum(-(-waiter.rows // step) for waiter in self.passes.values())
        in_turn = self.held() * ahead + 1
        fresh = [waiter.rows for waiter in self.passes.values() if not waiter.begun]
        if all(small <= min(info.fill_cut_in, step) for small in (*fresh, rows)):
            pieces = 1 + len(fresh)  # one of the begun pass before each that cuts in
            return min(in_turn, pieces * (max(1, info.fill_rounds) + 1) + 1)
        return in_turn

    # -- what happens --------------------------------------------------------------------------

    def see(self, calls: Iterable[Call], nothing_done: Iterable[Call]) -> None:
        """The calls of one turn; a round among `nothing_done` was none."""
        failed = {id(call) for call in nothing_done}
        for call in calls:
            if call.kind == "open":
                self.open(call.streams[0])
            elif call.kind == "close":
                self.passes.pop(call.streams[0], None)
                self.live.pop(call.streams[0], None)
            elif call.kind == "fill":
                self.judge_order(call)
                self.fill(call)
            elif call.kind == "round":
                self.round(call)
            elif call.kind == "fill.land" and id(call) not in failed:
                self.stepped = self.rounds
            elif call.kind == "round.land" and id(call) not in failed:
                self.rounds += 1

    def open(self, stream: int) -> None:
        rows = len(self.jobs[stream].prompt)
        if self.jobs[stream].forces is not nothing:
            self.widest = min(self.info.window_rows, self.info.round_rows)
        self.passes.pop(stream, None)
        self.passes[stream] = Waiter(end=rows, since=self.rounds, bound=self.first_step(rows))

    def judge_order(self, call: Call) -> None:
        """With CHUNKS a turn ends its fills with a piece, and begun passes are held back."""
        if not self.info.fill_chunks:
            return
        for stream in self.this_turn:
            if stream in self.passes and (stream,) != call.streams:
                self.broken.append(f"{call.streams} ran after a piece of {stream}")
        waiter = self.passes[call.streams[0]]
        held = waiter.begun and self.live and call.streams[0] not in self.this_turn
        if held and self.rounds - self.stepped < self.info.fill_rounds:
            self.broken.append(f"{call.streams} was not held back")
        self.this_turn += call.streams

    def fill(self, call: Call) -> None:
        for piece in call.pieces:
            waiter = self.passes[piece.stream]
            self.judge(piece.stream, waiter)
            waiter.at, waiter.begun = piece.end, True
            waiter.since, waiter.bound = self.rounds, self.next_step()
            if piece.end == waiter.end:
                del self.passes[piece.stream]
        rows = sum(piece.end - piece.start for piece in call.pieces)
        for stream in self.live:
            self.live[stream] += rows
        for stream in call.streams:
            if stream not in self.passes:
                self.live[stream] = 0

    def round(self, call: Call) -> None:
        most = self.most_rows()
        for stream in call.streams:
            if self.info.fill_chunks and self.live[stream] > most:
                self.broken.append(f"{stream} waited {self.live[stream]} rows of {most}")
            self.live[stream] = 0

    def end_turn(self, streams: Iterable[int]) -> None:
        """A turn is over with those streams open: nobody waits for ever unseen."""
        kept = set(streams)
        self.this_turn.clear()
        self.passes = {stream: w for stream, w in self.passes.items() if stream in kept}
        self.live = {stream: rows for stream, rows in self.live.items() if stream in kept}
        for stream, waiter in self.passes.items():
            self.judge(stream, waiter)
        if self.info.fill_chunks and max(self.live.values(), default=0) > self.most_rows():
            self.broken.append(f"rows since their rounds: {self.live}")

    def judge(self, stream: int, waiter: Waiter) -> None:
        waited = self.rounds - waiter.since
        if waited > waiter.bound:
            self.broken.append(f"{stream} waited {waited} rounds of {waiter.bound} for a step")
