"""How long a stream waits for its reader: as long as the reader takes anything at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from aiohttp import web

from tensorfold.core.server.sse import MOST_WAITING, POLL_SECONDS, EventStream, ReaderGone

pytestmark = pytest.mark.asyncio


class Transport:
    """What waits for a reader that takes `takes(size)` bytes whenever it is looked at."""

    def __init__(self, takes: Callable[[int], int]) -> None:
        self.takes = takes
        self.size = 2 * MOST_WAITING
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        self.size -= self.takes(self.size)
        return self.size

    def abort(self) -> None:
        self.aborted = True


def stream_over(transport: Transport, timeout: float) -> EventStream:
    events = EventStream(cast(web.Request, None), timeout)
    events.transport = cast(Any, transport)
    return events


async def test_a_reader_that_takes_a_little_is_waited_for_beyond_the_limit() -> None:
    transport = Transport(lambda size: MOST_WAITING // 8)
    began = asyncio.get_running_loop().time()
    await stream_over(transport, 2 * POLL_SECONDS).wait_for_reader()
    assert asyncio.get_running_loop().time() - began > 4 * POLL_SECONDS
    assert not transport.aborted
    assert transport.size <= MOST_WAITING // 2


async def test_a_reader_that_takes_nothing_is_waited_for_no_longer_than_the_limit() -> None:
    transport = Transport(lambda size: 0)
    with pytest.raises(ReaderGone, match=r"took nothing for 0\.05 s"):
        await stream_over(transport, 0.05).wait_for_reader()
    assert transport.aborted
