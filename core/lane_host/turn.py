"""One turn on the engine thread: fills, at most one round, and what is delivered between.

What readers are owed leaves between the launch of a forward and its landing; first tokens leave as
their step ends. A cancel is looked at before each step, between the forwards of a step, and after
each landing, before anything of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from tensorfold.core.engine_api import Filled, Flight, Landed, Piece, TokenLogprob, Window
from tensorfold.core.errors import EngineFault
from tensorfold.core.lane_host.drafting import Drafting, only
from tensorfold.core.lane_host.fills import ENOUGH, NextFill, SoFar, Step, forwards
from tensorfold.core.lane_host.lanes import LOG, Lanes
from tensorfold.core.lane_host.replies import Reply
from tensorfold.core.lane_host.stream import FAULT
from tensorfold.core.lane_host.trace import Forward, Trace, TurnTrace

NOTHING_YET = SoFar()
Batch = TypeVar("Batch", Piece, Window)
Result = TypeVar("Result", Filled, Landed)


class Turns:
    """Runs turns over the lanes. `look` takes what other threads left: arrivals, cancels, ends; and
    tells whether there was any. `arrived`: whether there are arrivals to take."""

    def __init__(
        self,
        lanes: Lanes,
        look: Callable[[], bool],
        arrived: Callable[[], bool],
        next_fill: NextFill,
        clock: Callable[[], float],
        trace: Trace | None,
        drafting: Drafting,
    ) -> None:
        self.lanes = lanes
        self.drafting = drafting
        self.look = look
        self.arrived = arrived
        self.next_fill = next_fill
        self.clock = clock
        self.trace = trace
        self.info = lanes.info
        self.all_known = drafting.guessers.all_known
        self.figures = lanes.figures
        self.rounds_since = ENOUGH
        # Whether all streams of the last round said that they go on.
        self.went_on = False
        self.forwards: list[Forward] = []  # of this turn, for the trace
        self.launched = 0

    def run(self) -> None:
        """One turn."""
        began, launched, rows = self.clock(), self.launched, self.figures.filled_rows
        self.look()
        steps = self.fills()
        self.round()
        # Before the last words leave: whoever asks after them finds the turn noted.
        if self.launched != launched:
            self.figures.turns += 1
            self.note(began, self.figures.filled_rows - rows, steps)
        if not self.lanes.busy():
            self.lanes.outbox.flush()

    def note(self, began: float, rows: int, steps: int) -> None:
        ended = self.clock()
        if steps or len(self.lanes.queue):
            self.figures.measure(rows, steps, ended - began)
        if self.trace is not None:
            self.trace(
                TurnTrace(
                    turn=self.figures.turns,
                    began=began,
                    ended=ended,
                    forwards=tuple(self.forwards),
                    waiting=len(self.lanes.queue),
                    filling=len(self.lanes.line),
                    live=len(self.lanes.live),
                    drafts=self.drafting.counted(),
                )
            )
            self.forwards.clear()

    # -- fills ---------------------------------------------------------------------------------

    def fills(self) -> int:
        """Run this turn's steps; how many there were."""
        so_far = NOTHING_YET
        ran: set[int] = set()
        has_begun = False
        while (step := self.next_step(so_far)) is not None:
            has_begun |= any(not self.lanes.line[stream].begun for stream in step.streams)
            ran.update(step.streams)
            so_far = self.step(step, so_far)
        if has_begun:
            self.mark_overtaken(ran)
        return so_far.steps

    def next_step(self, so_far: SoFar) -> Step | None:
        lanes = self.lanes
        # Who came while others were seated is here too: nobody is waited for, and nobody left out.
        while lanes.admit() and self.look():
            pass
        if not lanes.line:
            return None
        line = tuple(lanes.line.values())
        step = self.next_fill(line, len(lanes.live), so_far, self.rounds_since, self.info)
        stuck = step is None and not so_far.steps and not lanes.live
        assert not stuck, f"nothing is live and no step follows for {line}"
        return step

    def mark_overtaken(self, ran: set[int]) -> None:
        """Another pass began this turn: whoever had begun and got no piece was overtaken."""
        for stream, entry in self.lanes.line.items():
            if entry.begun and not entry.overtaken and stream not in ran:
                self.lanes.line[stream] = replace(entry, overtaken=True)

    def step(self, step: Step, so_far: SoFar) -> SoFar:
        """Run a step, forward by forward, and deliver its first tokens."""
        rows, ended = 0, False
        for spans in self.spans(step):
            pieces = [self.piece(stream, start, end) for stream, start, end in spans]
            replies = [self.lanes.replies[piece.stream] for piece in pieces]
            results = self.fly(self.lanes.engine.fill, pieces)
            ended = results is not None and self.land_pieces(replies, pieces, results)
            rows += 0 if results is None else sum(piece.end - piece.start for piece in pieces)
            if not any(piece.stream in self.lanes.line for piece in pieces):
                break
        if rows:
            self.rounds_since = 0
            self.figures.filled_rows += rows
            self.figures.fills[step.kind] += 1
        if self.info.fill_many:
            self.take_turns(step)
        self.lanes.outbox.flush()
        return SoFar(steps=so_far.steps + 1, rows=so_far.rows + rows, ended=ended)

    def spans(self, step: Step) -> list[list[tuple[int, int, int]]]:
        """The (stream, start, end) of each forward of a step."""
        entries = [self.lanes.line[stream] for stream in step.streams]
        if len(entries) > 1:
            return [[(entry.stream, entry.start, entry.end) for entry in entries]]
        (entry,) = entries
        cuts = forwards(entry, step.rows, self.info.chunk_rows)
        return [[(entry.stream, start, end)] for start, end in cuts]

    def piece(self, stream: int, start: int, end: int) -> Piece:
        reply = self.lanes.replies[stream]
        if end < len(reply.job.prompt):
            return Piece(stream=stream, start=start, end=end)
        first = reply.coming[:1]
        mask = only(first[0], self.info.vocab_size) if first else None
        want = self.drafting.first_want(reply)
        return Piece(stream=stream, start=start, end=end, want=want, mask=mask)

    def land_pieces(
        self, replies: Sequence[Reply], pieces: Sequence[Piece], results: Sequence[Filled]
    ) -> bool:
        """Commit one forward of a fill; whether every piece of it ran to its prompt's end."""
        now = self.clock()
        ended = True
        for reply, piece, filled in zip(replies, pieces, results, strict=True):
            goes_on = piece.end < len(reply.job.prompt)
            ended = ended and not goes_on
            if filled.saved is not None:
                self.lanes.keep(reply.job, filled.saved)
            if reply.end is not None:
                continue
            if filled.fault is not None:
                self.lanes.end(reply, FAULT, filled.fault)
            elif goes_on:
                entry = self.lanes.line[piece.stream]
                self.lanes.line[piece.stream] = replace(
                    entry, start=piece.end, begun=True, overtaken=False
                )
            else:
                assert filled.token is not None, filled
                self.lanes.go_live(reply, now)
                logprobs = () if filled.logprob is None else (filled.logprob,)
                self.drafting.begin(reply, filled.drafts, filled.chances)
                self.commit(reply, (filled.token,), logprobs, now)
        return ended

    def take_turns(self, step: Step) -> None:
        """What a step did not end goes to the end of the line."""
        for stream in step.streams:
            if stream in self.lanes.line:
                self.lanes.line[stream] = self.lanes.line.pop(stream)

    # -- the round -----------------------------------------------------------------------------

    def round(self) -> None:
        """Launch one round over the live streams, deliver what is still owed, land, commit."""
        live = self.lanes.live
        if not live:
            return
        batch = self.drafting.windows(list(live.values()), self.lanes.at_rest())
        began = self.clock()
        flight = self.launch(self.lanes.engine.round, batch)
        if flight is None:
            return
        # While it is in flight, since between a landing and the next launch the engine waits.
        rows = sum([len(window.tokens) for window in batch])
        goes_on = all(window.goes_on for window in batch)
        results = self.land(flight, batch, began)
        if results is None:
            return
        now = self.clock()
        self.figures.count_round(rows)
        # A round that ran ahead of a fill takes no time any more.
        if self.rounds_since or not self.went_on:
            self.drafting.measured(batch, rows, now - began)
        self.rounds_since += 1
        self.went_on = goes_on
        for window, landed in zip(batch, results, strict=True):
            reply = live.get(window.stream)
            if reply is not None:
                self.land_window(reply, window, landed, now)

    def land_window(self, reply: Reply, window: Window, landed: Landed, now: float) -> None:
        if landed.fault is not None:
            self.lanes.end(reply, FAULT, landed.fault)
            return
        assert 0 < len(landed.tokens) <= len(window.tokens), (window, landed)
        reply.rounds += 1
        reply.served = self.figures.rounds
        self.commit(reply, landed.tokens, landed.logprobs, now, window)
        if reply.guessing is not None:
            reply.guessing.head = landed.drafts, landed.chances

    def commit(
        self,
        reply: Reply,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprob],
        now: float,
        window: Window | None = None,
    ) -> None:
        """Keep the tokens up to the reply's end, if it has come, and owe them to its reader."""
        # One that is none would be found out later and elsewhere, by the round that runs it.
        if not self.all_known(tokens):
            words = f"the engine gave {tokens!r}, and tokens are 0 to {self.info.vocab_size - 1}"
            self.lanes.end(reply, FAULT, words)
            return
        kept, reason, words = reply.take(tokens, logprobs)
        if window is not None and (reply.guessing is not None or window.forced):
            self.drafting.landed(reply, window, tokens, kept)
        reply.last_at = now
        self.figures.tokens += kept
        self.lanes.outbox.owe(reply)
        if reason is not None:
            self.lanes.end(reply, reason, words)

    # -- the engine ----------------------------------------------------------------------------

    def fly(
        self, call: Callable[[Sequence[Batch]], Flight[Result]], batch: Sequence[Batch]
    ) -> Sequence[Result] | None:
        """Launch and land; none when the call did nothing."""
        began = self.clock()
        flight = self.launch(call, batch)
        return None if flight is None else self.land(flight, batch, began)

    def launch(
        self, call: Callable[[Sequence[Batch]], Flight[Result]], batch: Sequence[Batch]
    ) -> Flight[Result] | None:
        """Launch, then deliver what is owed and learn, which the launch was not to wait for; none
        when the call did nothing. Every stream of it has ended then."""
        self.launched += 1
        try:
            flight = call(batch)
        except EngineFault as error:
            self.nothing_done(batch, error)
            return None
        self.lanes.outbox.flush()
        self.drafting.catch_up()
        return flight

    def land(
        self, flight: Flight[Result], batch: Sequence[Batch], began: float
    ) -> Sequence[Result] | None:
        """The results of what was launched at `began`; none when the call did nothing. Every stream
        of it has ended then."""
        named = [entry.stream for entry in batch]
        try:
            results = flight.land(self.prompt_waits)
        except EngineFault as error:
            self.nothing_done(batch, error)
            return None
        assert [result.stream for result in results] == named, (named, results)
        if self.trace is not None:
            self.forwards.append(traced(batch, results, began, self.clock()))
        self.look()
        return results

    def prompt_waits(self) -> bool:
        return self.arrived() and self.lanes.has_seat()

    def nothing_done(self, batch: Sequence[Piece] | Sequence[Window], error: EngineFault) -> None:
        LOG.warning("a call of the engine did nothing: %s", error)
        for entry in batch:
            reply = self.lanes.replies.get(entry.stream)
            if reply is not None:
                self.lanes.end(reply, FAULT, str(error))


def traced(
    batch: Sequence[Piece | Window],
    results: Sequence[Filled | Landed],
    launched: float,
    landed: float,
) -> Forward:
    # One kind a batch; and lists first, since a generator costs more than all else here.
    if isinstance(batch[0], Piece):
        pieces = cast("tuple[Piece, ...]", tuple(batch))
        return Forward(launched=launched, landed=landed, pieces=pieces)
    windows = cast("tuple[Window, ...]", tuple(batch))
    committed = [len(entry.tokens) for entry in cast("Sequence[Landed]", results)]
    return Forward(launched=launched, landed=landed, windows=windows, committed=tuple(committed))
