"""Server-sent events: one JSON an event, comments while nothing comes, one slow reader dropped."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web

from tensorfold.core.errors import RequestError

LOG = logging.getLogger("tensorfold.server")
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
# Line ends to some readers, and to no JSON writer.
LINE_ENDS = {ord(one): f"\\u{ord(one):04x}" for one in "\u0085\u2028\u2029"}
# Bytes that may wait in the transport before the reader is waited for.
MOST_WAITING = 64 << 10
# Above what waits by our own rule, so that no write blocks in the library.
TRANSPORT_LIMIT = 4 << 20
POLL_SECONDS = 0.02


class ReaderGone(Exception):
    """The stream's reader has left, or has taken nothing for too long."""


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Written(str):
    """A value's JSON, as `dumps` writes it: of what is long, and was written before."""

    __slots__ = ()


def dumps_object(value: Mapping[str, Any]) -> str:
    """An object whose own values may be `Written` already."""
    if Written not in map(type, value.values()):
        return dumps(value)
    members = [
        f"{dumps(name)}:{item if type(item) is Written else dumps(item)}"
        for name, item in value.items()
    ]
    return "{" + ",".join(members) + "}"


class WrittenLists:
    """An object of lists that grow, each entry written when it comes: what has grown long would
    hold everyone up if all of it were written at once."""

    def __init__(self) -> None:
        self.parts: dict[str, list[str]] = {}

    def add(self, lists: Mapping[str, Sequence[Any]]) -> None:
        for name, items in lists.items():
            if items:
                self.parts.setdefault(name, []).append(dumps(items)[1:-1])

    def whole(self) -> Written | None:
        """All of it; none where nothing came."""
        if not self.parts:
            return None
        members = (f"{dumps(name)}:[{','.join(parts)}]" for name, parts in self.parts.items())
        return Written("{" + ",".join(members) + "}")


def written_list(values: Iterable[Mapping[str, Any]]) -> Written:
    """A list of objects whose own values may be `Written` already."""
    return Written("[" + ",".join(map(dumps_object, values)) + "]")


def error_object(error: RequestError) -> dict[str, Any]:
    """OpenAI's error shape."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


class EventStream:
    """One open stream. Every write ends within `reader_timeout` of the reader's last taking."""

    def __init__(
        self,
        request: web.Request,
        reader_timeout: float,
        response: web.StreamResponse | None = None,
    ) -> None:
        self.request = request
        self.reader_timeout = reader_timeout
        self.response = response or web.StreamResponse(headers=HEADERS)
        self.at_once = 0  # bytes since others had their turn

    async def open(self) -> None:
        transport = self.request.transport
        if transport is None:
            raise ReaderGone("the reader left")
        try:
            await self.response.prepare(self.request)
        except ConnectionError:
            raise ReaderGone("the reader left") from None
        self.transport = transport
        self.transport.set_write_buffer_limits(high=TRANSPORT_LIMIT)

    async def send(self, value: Mapping[str, Any]) -> None:
        await self.write(f"data: {dumps_object(value).translate(LINE_ENDS)}\n\n")

    async def comment(self) -> None:
        await self.write(": ping\n\n")

    async def fail(self, error: RequestError) -> None:
        """Tell an error and close; no finish reason is made up, and no [DONE] follows."""
        with suppress(ReaderGone):
            await self.send(error_object(error))
        await self.close()

    async def done(self) -> None:
        await self.write("data: [DONE]\n\n")
        await self.close()

    async def close(self) -> None:
        with suppress(ConnectionError):  # the reader may be gone with its last event
            await self.response.write_eof()

    async def write(self, text: str) -> None:
        await self.write_bytes(text.encode())

    async def write_bytes(self, data: bytes) -> None:
        self.at_once += len(data)
        if self.at_once > MOST_WAITING:
            # A reader that takes all at once would have all that it is owed made before anyone's.
            self.at_once = 0
            await asyncio.sleep(0)
        if self.waiting() > MOST_WAITING:
            await self.wait_for_reader()
        try:
            async with asyncio.timeout(self.reader_timeout):
                await self.response.write(data)
        except TimeoutError:
            self.drop()
        except ConnectionError:
            raise ReaderGone("the reader left") from None

    def waiting(self) -> int:
        return self.transport.get_write_buffer_size()

    async def wait_for_reader(self) -> None:
        """Return once the reader has taken half of what may wait; drop it if it takes nothing."""
        clock = asyncio.get_running_loop().time
        left, since = self.waiting(), clock()
        while left > MOST_WAITING // 2:
            await asyncio.sleep(POLL_SECONDS)
            now = self.waiting()
            if now < left:
                since = clock()
            elif clock() - since > self.reader_timeout:
                self.drop()
            left = now

    def drop(self) -> None:
        """Close the connection at once: what waits for this reader is thrown away."""
        self.transport.abort()
        raise ReaderGone(f"the reader took nothing for {self.reader_timeout:g} s")


async def send_whole(
    request: web.Request, text: str, reader_timeout: float, *, name: str
) -> web.StreamResponse:
    """A JSON body; a large one is written as a stream is, so that its reader is held to the same.

    The library would wait for a reader that takes nothing, with the body, for ever.
    """
    body = text.encode()
    if len(body) <= MOST_WAITING:
        return web.Response(body=body, content_type="application/json", charset="utf-8")
    response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
    response.content_length = len(body)
    stream = EventStream(request, reader_timeout, response)
    try:
        await stream.open()
        for start in range(0, len(body), MOST_WAITING):
            await stream.write_bytes(body[start : start + MOST_WAITING])
        await stream.wait_for_reader()
        await stream.close()
    except ReaderGone as gone:
        LOG.warning("%s: %s", name, gone)
    return response
