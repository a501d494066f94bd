"""How long a stream waits for its reader: as long as the reader takes anything at all."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web

from tensorfold.core.server.sse import MOST_WAITING, EventStream, ReaderGone

pytestmark = pytest.mark.asyncio


class Transport:
    """What waits for a reader that takes a quarter of it every `pause` seconds, or nothing."""

    def __init__(self, pause: float | None) -> None:
        self.pause = pause
        self.size = 2 * MOST_WAITING
        self.taken_at = asyncio.get_running_loop().time()
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        now = asyncio.get_running_loop().time()
        if self.pause is not None and now - self.taken_at >= self.pause:
            self.size -= MOST_WAITING // 2
            self.taken_at = now
        return self.size

    def abort(self) -> None:
        self.aborted = True


def stream_over(transport: Transport, timeout: float) -> EventStream:
    events = EventStream(cast(web.Request, None), timeout)
    events.transport = cast(Any, transport)
    return events


async def test_a_reader_that_takes_a_little_is_waited_for_beyond_the_limit() -> None:
    limit = 0.3
    transport = Transport(pause=limit / 2)
    began = asyncio.get_running_loop().time()
    await stream_over(transport, limit).wait_for_reader()
    assert asyncio.get_running_loop().time() - began > limit
    assert not transport.aborted


async def test_a_reader_that_takes_nothing_is_waited_for_no_longer_than_the_limit() -> None:
    transport = Transport(pause=None)
    with pytest.raises(ReaderGone, match=r"took nothing for 0\.05 s"):
        await stream_over(transport, 0.05).wait_for_reader()
    assert transport.aborted


class Taken:
    """A response whose reader takes all that is written, at once."""

    def __init__(self) -> None:
        self.size = 0

    async def write(self, data: bytes) -> None:
        self.size += len(data)


async def test_a_reader_that_is_owed_much_and_takes_it_at_once_holds_nobody_up() -> None:
    turns, chunks, response = 0, 2000, Taken()

    async def beside() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    transport = Transport(pause=None)
    transport.size = 0
    events = EventStream(cast(web.Request, None), 1.0, cast(web.StreamResponse, response))
    events.transport = cast(Any, transport)
    other = asyncio.create_task(beside())
    for _ in range(chunks):
        await events.send({"text": "x" * 1000})
    other.cancel()
    assert response.size > chunks * 1000
    # Others have theirs often enough, and not so often that it costs.
    most = response.size / MOST_WAITING
    assert most / 2 < turns < most + 2
