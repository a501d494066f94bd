"""The lane host: one engine thread that owns the queue, the lanes and the turn.

Other threads leave jobs and cancels at its door and read its figures; everything else happens on
the engine thread. Whatever goes wrong there, every stream ends exactly once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tensorfold.core.drafter_api import HostDrafter
from tensorfold.core.engine_api import Engine, Memory, Watched
from tensorfold.core.errors import CLOSED_WORDS, EngineLost, RequestError, unavailable
from tensorfold.core.lane_host import fills
from tensorfold.core.lane_host.drafting import Drafting
from tensorfold.core.lane_host.figures import Figures
from tensorfold.core.lane_host.kept import Keeper, KeepNothing
from tensorfold.core.lane_host.lanes import LOG, HostOptions, Lanes
from tensorfold.core.lane_host.outbox import Outbox
from tensorfold.core.lane_host.replies import Reply
from tensorfold.core.lane_host.stream import CLOSING, LOST, Deliver, HostStats, Job
from tensorfold.core.lane_host.trace import Trace
from tensorfold.core.lane_host.turn import Turns
from tensorfold.core.token_ids import all_below

__all__ = ["Host", "HostOptions"]

NOW = float("-inf")
DEFAULTS = HostOptions()
CONTEXTS_QUEUED = 64
LOOK_SECONDS = 0.25


class Host:
    """Drives one engine. `start` gives it a thread; without one, `turn` runs on the caller's."""

    def __init__(
        self,
        engine: Engine,
        deliver: Deliver,
        *,
        options: HostOptions = DEFAULTS,
        next_fill: fills.NextFill = fills.next_fill,
        clock: Callable[[], float] = time.monotonic,
        trace: Trace | None = None,
        keeper: Keeper | None = None,
        drafters: Sequence[HostDrafter] = (),
    ) -> None:
        self.info = engine.info
        self._engine = engine
        self._clock = clock
        self._gate = threading.Condition()
        self._figures = Figures(self._gate)
        self._outbox = Outbox(deliver)
        self._keeper: Keeper = keeper or KeepNothing()
        self._lanes = Lanes(engine, self._outbox, self._figures, self._keeper, options, clock)
        self._drafting = Drafting(self.info, drafters, self._lanes.live, self._figures)
        self._turns = Turns(
            self._lanes, self._look, self._arrived, next_fill, clock, trace, self._drafting
        )
        self._most_rows = options.queue_rows or CONTEXTS_QUEUED * self.info.context
        self._most_requests = options.queue_requests
        self._arrivals: list[Reply] = []
        self._cancels: list[int] = []
        self._deadline: float | None = None  # for what was taken, once closing
        self._lost: str | None = None
        self._told_lost: str | None = None  # from outside, to be acted on by the engine thread
        self._losing = threading.Lock()
        self._over_for_good = False
        self._thread: threading.Thread | None = None

    # -- any thread ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread; once."""
        assert self._thread is None, "the host has its thread already"
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, all or none. Raises `RequestError`: 400, 429 when full, 503 when closing."""
        for job in jobs:
            self._check(job)
        with self._gate:
            self._refuse_if_closed()
            self._refuse_if_full(jobs)
            now = self._clock()
            for job in jobs:
                assert job.stream not in self._lanes.replies, f"stream {job.stream} exists"
                reply = Reply(
                    job=job,
                    stream=job.stream,
                    submitted=now,
                    left=job.most,
                    draws=job.draft,
                    vocab_size=self.info.vocab_size,
                )
                self._lanes.replies[job.stream] = reply
                self._figures.arrive(reply)
                self._arrivals.append(reply)
            self._gate.notify()

    def cancel(self, stream: int) -> None:
        """End a stream as soon as no forward is in flight; a stream that is not there is fine."""
        with self._gate:
            self._cancels.append(stream)
            self._gate.notify()

    def close(self, drain_seconds: float) -> None:
        """Take no new work, give what was taken that time, end the rest, stop the thread."""
        self._close_by(self._clock() + drain_seconds)
        thread = self._thread
        if thread is None:
            while self.turn():
                pass
            self._end_service()
        elif thread is not threading.current_thread():
            # To its end, or until it is given up.
            while thread.is_alive() and self._thread is thread:
                thread.join(LOOK_SECONDS)

    def close_now(self) -> None:
        """End every reply as soon as no forward is in flight; returns at once."""
        self._close_by(NOW)

    def lose(self, words: str) -> None:
        """The engine was lost between calls: end every reply with the reason."""
        with self._gate:
            self._told_lost = words
            self._gate.notify()

    def give_up(self, words: str) -> None:
        """The engine thread is in a call that does not come back: end every reply from here."""
        self._thread = None
        self._lose(EngineLost(words))
        self._over_for_good = True

    def stats(self) -> HostStats:
        with self._gate:
            return self._figures.stats(
                alive=self._lost is None and not self._over_for_good,
                closing=self._deadline is not None,
                lost=self._lost,
            )

    @property
    def drafters(self) -> list[str]:
        """The names of the host's own drafters."""
        return self._drafting.guessers.names[1:]

    def memory(self) -> Memory:
        return self._engine.memory()

    # -- the door ------------------------------------------------------------------------------

    def _check(self, job: Job) -> None:
        tokens = len(job.prompt) + job.most
        if not job.prompt:
            raise RequestError("the prompt is empty", code="empty_prompt")
        if not all_below(job.prompt, self.info.vocab_size):
            raise RequestError(f"a prompt token is outside 0 to {self.info.vocab_size - 1}")
        if job.most < 1:
            raise RequestError(f"a reply has at least 1 token, not {job.most}", param="max_tokens")
        if tokens > self.info.context:
            raise RequestError(
                f"This model's maximum context length is {self.info.context} tokens. However, "
                f"{len(job.prompt)} prompt tokens and a reply of {job.most} were asked.",
                code="context_length_exceeded",
            )

    def _refuse_if_closed(self) -> None:
        if self._lost is None and self._deadline is None:
            return
        words = CLOSED_WORDS if self._lost is None else f"the engine is lost: {self._lost}"
        raise unavailable(words)

    def _refuse_if_full(self, jobs: Sequence[Job]) -> None:
        """Bounds hold for what waits; with nothing waiting one submission always may."""
        waiting, rows = self._figures.waiting()
        coming = sum(len(job.prompt) for job in jobs)
        fits = waiting + len(jobs) <= self._most_requests and rows + coming <= self._most_rows
        if waiting and not fits:
            raise RequestError(
                f"the queue is full: {waiting} requests with {rows} prompt tokens wait",
                status=429,
                kind="rate_limit_error",
                code="queue_full",
                retry_after=self._figures.retry_after(),
            )

    def _close_by(self, deadline: float) -> None:
        with self._gate:
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
            self._gate.notify()

    # -- engine thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._has_work():
                self.turn()
        except BaseException as error:
            if self._lost is None:
                self._lose(error)
        self._end_service()

    def _has_work(self) -> bool:
        """Sleep until there is something to do; false when there will be nothing any more."""
        with self._gate:
            while not (self._pending() or self._over()):
                self._gate.wait()
            return not self._over()

    def turn(self) -> bool:
        """Run one turn on this thread; false when nothing is left to do until something comes."""
        if self._lost is not None:
            return False
        try:
            self._turns.run()
        except BaseException as error:
            self._lose(error)
            if not isinstance(error, Exception):
                raise
        return self._pending()

    def _pending(self) -> bool:
        if self._lost is not None:
            return False
        return bool(self._told_lost or self._lanes.busy() or self._arrivals or self._cancels)

    def _over(self) -> bool:
        closed = self._deadline is not None and not self._lanes.replies
        return closed or self._lost is not None

    def _arrived(self) -> bool:
        return bool(self._arrivals)

    def _look(self) -> bool:
        """Take what other threads left: a loss, arrivals, then cancels, then the end of service;
        whether there were arrivals or cancels."""
        if self._told_lost is not None:
            raise EngineLost(self._told_lost)
        some = bool(self._arrivals or self._cancels)
        if some:
            with self._gate:
                arrivals, self._arrivals = self._arrivals, []
                cancels, self._cancels = self._cancels, []
            for reply in arrivals:
                if reply.end is None:  # a close may have been quicker
                    self._lanes.queue.add(reply)
            for stream in cancels:
                self._lanes.cancel(stream)
        if self._deadline is not None and self._clock() >= self._deadline:
            self._lanes.end_all(CLOSING, CLOSED_WORDS)
        return some

    def _end_service(self) -> None:
        """Free the kept states of an engine that goes on to be shut down."""
        try:
            while self._lost is None and self._lanes.give_up_oldest():
                pass
        except Exception as error:
            self._lose(error)
        self._over_for_good = True

    def _lose(self, error: BaseException) -> None:
        """The engine can work no more: every stream ends with the reason, none is called again.

        A call that was given up may come back, and end its thread here too.
        """
        known = isinstance(error, EngineLost)
        words = str(error) if known else f"{type(error).__name__}: {error}"
        LOG.error("the engine is lost: %s", words, exc_info=None if known else error)
        with self._losing:
            with self._gate:
                self._lost = self._lost or words or "no reason given"
                replies = list(self._lanes.replies.values())
            for reply in replies:
                if reply.end is None:
                    self._lanes.let_go(reply, LOST, self._lost)
            self._outbox.flush_what_can()
        if isinstance(self._engine, Watched):
            # Its other ranks know nothing of what failed here.
            self._engine.lose(self._lost)
