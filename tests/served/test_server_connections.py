"""Connections whose peer speaks no HTTP, or says nothing at all."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.null.calling import server, slow

pytestmark = pytest.mark.asyncio
NO_HTTP = [
    b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 10_000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nExpect: gifts\r\n\r\n",
    b"\x16\x03\x01\x02\x00\r\n\r\n",
]


@pytest.mark.parametrize("sent", NO_HTTP, ids=["long-header", "length", "expect", "tls"])
async def test_what_is_no_http_is_refused_and_fills_no_log(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with server() as client:
        address = client.here.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(sent)
        first = await asyncio.wait_for(reader.readline(), 5)
        assert first.split()[1] in (b"400", b"417")
        writer.close()
        await client.chat()
    assert all(record.exc_info is None for record in caplog.records)
    assert all("\n" not in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_that_brings_no_request_is_closed_and_no_other(sent: bytes) -> None:
    async with server(slow(0.002), read_timeout=0.1) as client:
        long = asyncio.create_task(client.plain(prompt="abc", max_tokens=200, ignore_eos=True))
        address = client.here.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert (await long)["usage"]["completion_tokens"] == 200
