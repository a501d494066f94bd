"""Bodies that are large or cannot fit cost their sender, and hold no other request up."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import tracemalloc
from http.client import HTTPConnection
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.normalizers import Strip

from tensorfold.backends.fake.options import FakeOptions
from tensorfold.core.text import Text, TooLong, Vocabulary
from tests.null.calling import CHAT, PLAIN, chat, fake_text, server
from tests.null.wordy import byte_level_tokenizer
from tests.served.test_server_life import Gate

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("path", "place", "body"),
    [
        (PLAIN, "prompt", {"model": "fake", "prompt": "a" * 500_000}),
        (PLAIN, "prompt", {"model": "fake", "prompt": ["a", "a" * 500_000]}),
        (CHAT, "messages", chat(messages=[{"role": "user", "content": "a" * 500_000}])),
    ],
    ids=["prompt", "prompts", "messages"],
)
async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    path: str, place: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Vocabulary.encode

    def watched(self: Vocabulary, text: str, **options: Any) -> Any:
        assert len(text) < 100_000
        return encode(self, text, **options)

    monkeypatch.setattr(Vocabulary, "encode", watched)
    async with server() as client:
        status, answer = await client.post(path, body)
        error = answer["error"]
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == place
        assert error["message"].startswith(
            "This model's maximum context length is 4096 tokens. However, "
            f"your {place} resulted in at least "
        )
        await client.chat()


async def test_a_text_near_the_context_is_counted_exactly() -> None:
    async with server() as client:
        text = "a" * 16_000
        count = len(fake_text().vocabulary.encode(text, special=True))
        body = {"model": "fake", "prompt": text}
        words = (await client.post(PLAIN, body))[1]["error"]["message"]
        assert f"resulted in {count} tokens" in words


async def test_the_quick_count_is_never_above_the_true_one() -> None:
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size(), byte_level=True)
    for text in ("", "a", " " * 999, "the the the " * 50, "\u4e16\u754c" * 70, "x\n\n\ty" * 40):
        assert vocabulary.least_tokens(text) <= len(vocabulary.encode(text)), text
    assert vocabulary.least_tokens("a" * 10_000) > 0


async def test_a_tokenizer_that_may_swallow_text_has_no_quick_count() -> None:
    tokenizer = Tokenizer.from_str(byte_level_tokenizer().to_str())
    tokenizer.normalizer = Strip()
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size(), byte_level=True)
    assert vocabulary.least_tokens("a" * 10_000) == 0


async def test_large_bodies_take_turns_and_hold_no_small_one_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, release = threading.Semaphore(0), threading.Event()

    def slow(self: Text, text: str, most: int, **options: Any) -> Any:
        if len(text) > 1 << 20:
            begun.release()
            assert release.wait(10)
            raise TooLong(5)
        return self.vocabulary.encode(text, **options)

    monkeypatch.setattr(Text, "encode", slow)
    large = {"model": "fake", "prompt": "a" * (2 << 20)}
    async with server() as client:
        waiting = [asyncio.create_task(client.post(PLAIN, large)) for _ in range(3)]
        assert await asyncio.to_thread(begun.acquire, timeout=10)
        try:
            async with asyncio.timeout(5):
                await client.chat()
            assert not begun.acquire(blocking=False)
        finally:
            release.set()
        assert [status for status, _ in await asyncio.gather(*waiting)] == [400] * 3


def posted(address: str, path: str, body: bytes) -> int:
    """Post from another thread, which copies nothing of the body."""
    connection = HTTPConnection(address.removeprefix("http://"), timeout=10)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("path", [CHAT, PLAIN])
async def test_a_body_is_not_held_while_its_reply_waits(path: str) -> None:
    """Many replies may wait, and a body may hold much beside its prompt."""
    held, size = Gate("fill"), 8 << 20
    body = json.dumps(chat() | {"padding": "x" * size, "prompt": "abc"}).encode()
    async with server(FakeOptions(hook=held)) as client:
        tracemalloc.start()
        try:
            reply = asyncio.create_task(asyncio.to_thread(posted, client.here.address, path, body))
            await held.wait_reached()
            most = tracemalloc.get_traced_memory()[1]
            async with asyncio.timeout(5):
                while tracemalloc.get_traced_memory()[0] > size // 4:
                    await asyncio.sleep(0.01)
        finally:
            tracemalloc.stop()
            held.opened.set()
        assert await reply == 200
    assert most > size


async def test_bodies_that_are_read_at_once_are_bounded_together() -> None:
    """One alone always may; what is refused is told when to come back, and what was held is free
    for others again."""
    limit = 2 << 20
    body = json.dumps(chat() | {"padding": "x" * (limit - 200)}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    async with server(body_limit=limit) as client:
        bodies = client.here.service.bodies
        bodies.most = 3 * limit
        address, port = client.here.address.removeprefix("http://").split(":")
        waiting = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection(address, int(port))
            writer.write(head.encode() + body[:-1])
            waiting.append((reader, writer))
        async with asyncio.timeout(5):
            while bodies.held < 3 * len(body) - 3:
                await asyncio.sleep(0.005)
        data = io.BytesIO(body)
        headers = {"Content-Type": "application/json"}
        async with client.session.post(CHAT, data=data, headers=headers) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
            assert (await response.json())["error"]["code"] == "queue_full"
        # Small ones are read beside them, and those that began come to their end.
        bodies.most = 1
        await client.chat()
        bodies.most = 3 * limit
        for reader, writer in waiting[1:]:
            writer.write(body[-1:])
            assert b"200" in await reader.readline()
            writer.close()
        waiting[0][1].transport.abort()
        async with asyncio.timeout(5):
            while bodies.held:
                await asyncio.sleep(0.005)
        bodies.most = 1
        async with client.session.post(CHAT, data=io.BytesIO(body), headers=headers) as response:
            assert response.status == 200
