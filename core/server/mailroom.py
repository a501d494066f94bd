"""From the engine thread to the handlers: every stream's deliveries reach the request it is of."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.stream import Delivery, End, Job


class Inbox:
    """What the streams of one request were given and its handler has not taken yet.

    It is bounded by the replies themselves. Event-loop thread only.
    """

    def __init__(self, streams: Sequence[int]) -> None:
        self.waiting: deque[Delivery] = deque()
        self.open = set(streams)
        self.arrived = asyncio.Event()

    def put(self, delivery: Delivery) -> None:
        self.waiting.append(delivery)
        if delivery.end is not None:
            self.open.discard(delivery.stream)
        self.arrived.set()

    async def take(self, seconds: float | None = None) -> list[Delivery]:
        """Everything that has come, at least one; nothing once that time has passed."""
        if not self.waiting:
            try:
                async with asyncio.timeout(seconds):
                    await self.arrived.wait()
            except TimeoutError:
                return []
        self.arrived.clear()
        taken = list(self.waiting)
        self.waiting.clear()
        return taken


class Mailroom:
    """Inboxes by stream. `deliver` runs on the engine thread, everything else on the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[End], None]) -> None:
        self.loop = loop
        self.ended = ended
        self.inboxes: dict[int, Inbox] = {}
        self.numbers = itertools.count(1)
        self.gate = threading.Lock()
        self.coming: list[Delivery] = []

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """One wake of the loop, whatever the number of streams, and none while one is due.

        A loop that is behind is not woken again and again: its wakes would fill the pipe that
        signals need to come through.
        """
        with self.gate:
            due = bool(self.coming)
            self.coming += deliveries
        if due:
            return
        try:
            self.loop.call_soon_threadsafe(self.hand_out)
        except BaseException:
            # Nothing was taken: a closed loop has no readers.
            self.coming = []
            raise

    def hand_out(self) -> None:
        with self.gate:
            coming, self.coming = self.coming, []
        for delivery in coming:
            # A reader that has left has no inbox any more.
            inbox = self.inboxes.get(delivery.stream)
            if inbox is not None:
                inbox.put(delivery)
        # No reader runs before these are counted, and none is left out where one cannot be.
        for delivery in coming:
            if delivery.end is not None:
                self.ended(delivery.end)

    def number(self) -> int:
        """A stream number, unique for the host's life."""
        return next(self.numbers)

    @contextmanager
    def submitted(self, host: Host, jobs: Sequence[Job]) -> Iterator[Inbox]:
        """The inbox of jobs that were handed to the host. Leaving cancels what has not ended.

        Raises `RequestError` as `Host.submit` does.
        """
        inbox = Inbox([job.stream for job in jobs])
        for job in jobs:
            self.inboxes[job.stream] = inbox
        try:
            host.submit(jobs)
            try:
                yield inbox
            finally:
                for stream in inbox.open:
                    host.cancel(stream)
        finally:
            for job in jobs:
                del self.inboxes[job.stream]
