"""The end of a host and its engine, waited for without blocking and without being bound to it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from tensorfold.core.engine_api import Engine
from tensorfold.core.lane_host.host import Host
from tensorfold.core.server.service import LOG


class Closing:
    """Closes a host, then its engine, on a thread that the process does not wait for.

    A device that hangs in a call must not keep the process from its exit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, host: Host, engine: Engine) -> None:
        self.loop = loop
        self.host = host
        self.engine = engine
        self.closed = asyncio.Event()
        self.thread: threading.Thread | None = None

    def begin(self, drain_seconds: float) -> None:
        """Begin, or if it has begun, allow no more than that time from now."""
        if self.thread is not None:
            if drain_seconds <= 0:
                self.host.close_now()
            return
        self.thread = threading.Thread(
            target=self.run, args=(drain_seconds,), name="closing", daemon=True
        )
        self.thread.start()

    def run(self, drain_seconds: float) -> None:
        try:
            self.host.close(drain_seconds)
            self.engine.shutdown()
        except Exception:
            LOG.exception("the engine did not close cleanly")
        finally:
            with suppress(RuntimeError):  # the loop may be over by now
                self.loop.call_soon_threadsafe(self.closed.set)

    async def wait(self, seconds: float) -> bool:
        """Whether it is over within that time."""
        try:
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        except TimeoutError:
            return False
        return True
