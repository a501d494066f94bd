"""Who is where: the queue, the line and the live streams, and the doors between them.

Engine thread only. A reply is admitted once, goes from the line to the live streams once, and ends
once; its storage in the engine is freed at that moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tensorfold.core.engine_api import Engine, Opened, Opening, Saved
from tensorfold.core.errors import EngineFault, NoRoom, Refused
from tensorfold.core.lane_host.figures import Figures
from tensorfold.core.lane_host.fills import Pass
from tensorfold.core.lane_host.kept import Keeper, Plan
from tensorfold.core.lane_host.outbox import Outbox
from tensorfold.core.lane_host.queue import Queue
from tensorfold.core.lane_host.replies import FILLING, LIVE, Reply
from tensorfold.core.lane_host.stream import CANCELLED, FAULT, REFUSED, Job

LOG = logging.getLogger("tensorfold.host")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostOptions:
    """The queue's bounds.

    A background reply is foreground after `background_after` seconds; `skips` later ones may pass
    one that waits for memory. `queue_rows` prompt rows (0: 64 contexts) and `queue_requests`
    replies may wait.
    """

    background_after: float = 60.0
    skips: int = 8
    queue_rows: int = 0
    queue_requests: int = 4096


class Lanes:
    def __init__(
        self,
        engine: Engine,
        outbox: Outbox,
        figures: Figures,
        keeper: Keeper,
        options: HostOptions,
        clock: Callable[[], float],
    ) -> None:
        self.engine = engine
        self.info = engine.info
        self.outbox = outbox
        self.figures = figures
        self.keeper = keeper
        self.skips = options.skips
        self.clock = clock
        self.replies: dict[int, Reply] = {}  # every stream that has not ended
        self.queue = Queue(options.background_after)
        self.line: dict[int, Pass] = {}
        self.live: dict[int, Reply] = {}
        self.freed = 0  # how often storage was freed: no room then is no room until it rises

    def busy(self) -> bool:
        return bool(self.live or self.line or len(self.queue))

    def at_rest(self) -> bool:
        """Whether no prompt goes in, or could, before the next round."""
        return not self.line and not (len(self.queue) and self.has_seat())

    # -- admission -----------------------------------------------------------------------------

    def admit(self) -> bool:
        """Seat replies while a lane is free, the queue's head fits, and `Info.passes` allows;
        whether any was taken off the queue."""
        some = False
        while len(self.queue) and self.has_seat() and self.admit_one(self.clock()):
            some = True
        return some

    def has_seat(self) -> bool:
        if len(self.line) + len(self.live) >= self.info.lanes:
            return False
        return self.info.passes == 0 or len(self.line) < self.info.passes

    def admit_one(self, now: float) -> bool:
        """Take one reply off the queue; false when none of those that may go next has room."""
        passed: list[Reply] = []
        for reply in self.queue.first(1 + self.skips):
            if self.try_open(reply, now, alone=not passed and not (self.line or self.live)):
                for waiter in passed:
                    waiter.skipped += 1
                return True
            passed.append(reply)
            if reply.skipped >= self.skips:
                return False
        return False

    def try_open(self, reply: Reply, now: float, *, alone: bool) -> bool:
        """Open a reply or end it; false while it has to wait. `alone`: only kept states can go."""
        if reply.tried == self.freed:
            return False
        reason, words = reply.look_ahead()
        if reason is not None:
            self.end(reply, reason, words)
            return True
        while True:
            plan = self.keeper.plan(reply.job)
            try:
                opened = self.engine.open(opening(reply.job, plan))
            except NoRoom as error:
                if not alone:
                    reply.tried = self.freed
                    return False
                if not self.give_up_oldest():
                    self.end(reply, REFUSED, str(error))
                    return True
            except Refused as error:
                self.end(reply, REFUSED, str(error))
                return True
            except EngineFault as error:
                self.end(reply, FAULT, str(error))
                return True
            else:
                self.seat(reply, opened, plan, now)
                return True

    def seat(self, reply: Reply, opened: Opened, plan: Plan, now: float) -> None:
        rows = len(reply.job.prompt)
        reply.opened = True
        assert 0 <= opened.cached < rows, opened
        assert opened.cached % self.info.grid == 0, opened
        if opened.lost is not None:
            LOG.warning("stream %d runs from row 0: %s", reply.stream, opened.lost)
        self.queue.remove(reply)
        reply.cached = opened.cached
        reply.admitted_at = now
        marks = tuple(mark for mark in plan.marks if mark > opened.cached)
        self.line[reply.stream] = Pass(
            stream=reply.stream, start=opened.cached, end=rows, marks=marks
        )
        self.figures.move(reply, FILLING)

    # -- kept states ---------------------------------------------------------------------------

    def keep(self, job: Job, saved: Saved) -> None:
        for gone in self.keeper.take(job, saved):
            self.drop(gone)

    def give_up_oldest(self) -> bool:
        oldest = self.keeper.oldest()
        if oldest is None:
            return False
        self.drop(oldest)
        return True

    def drop(self, saved: Saved) -> None:
        self.freed += 1
        twice(lambda: self.engine.drop(saved))

    # -- in and out ----------------------------------------------------------------------------

    def go_live(self, reply: Reply, now: float) -> None:
        """A pass went in: the stream decodes from here on."""
        del self.line[reply.stream]
        self.live[reply.stream] = reply
        reply.first_at = reply.last_at = now
        # As if it had been in the last round: whoever waited for a row longer goes before it.
        reply.served = self.figures.rounds
        self.figures.first_tokens += 1
        self.figures.move(reply, LIVE)

    def cancel(self, stream: int) -> None:
        reply = self.replies.get(stream)
        if reply is not None:
            reply.forget_owed()
            self.end(reply, CANCELLED, "the request was cancelled")

    def end(self, reply: Reply, reason: str, words: str = "") -> None:
        """End a reply wherever it is, and free what the engine holds of it."""
        self.let_go(reply, reason, words)
        if reply.opened:
            self.freed += 1
            twice(lambda: self.engine.close(reply.stream))

    def let_go(self, reply: Reply, reason: str, words: str) -> None:
        """End a reply in the host alone: for an engine that can work no more."""
        assert reply.end is None, (reply.stream, reply.end, reason)
        reply.end = reply.ending(reason, words)
        self.outbox.owe(reply)
        self.figures.end(reply, reason)
        self.queue.remove(reply)
        self.line.pop(reply.stream, None)
        self.live.pop(reply.stream, None)
        self.replies.pop(reply.stream, None)

    def end_all(self, reason: str, words: str) -> None:
        for reply in list(self.replies.values()):
            self.end(reply, reason, words)


def opening(job: Job, plan: Plan) -> Opening:
    return Opening(
        stream=job.stream,
        prompt=job.prompt,
        most=job.most,
        sampling=job.sampling,
        seed=job.seed,
        logprobs=job.logprobs,
        marks=plan.marks,
        resume=plan.resume,
    )


def twice(free: Callable[[], None]) -> None:
    """Free storage; a call that did nothing is made once more, and failing again is a loss."""
    try:
        free()
    except EngineFault as error:
        LOG.warning("freeing storage did nothing, once more: %s", error)
        free()
