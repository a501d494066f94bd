"""How other servers have failed their clients, over a fake engine: none of it is ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tensorfold.backends.fake import model
from tensorfold.backends.fake.options import FakeOptions
from tensorfold.core.engine_api import Opening, Sampling
from tensorfold.core.lane_host.stream import End
from tensorfold.core.server.metrics import Metrics
from tensorfold.core.text import Part, Reader
from tests.null.calling import CHAT, PLAIN, Client, chat, fake_text, server, text_of
from tests.served.test_server_life import Gate

pytestmark = pytest.mark.asyncio
BODY = {"model": "fake", "prompt": "abc", "max_tokens": 20, "ignore_eos": True, "seed": 3}


def said(content: str, most: int) -> str:
    """What the fake says to a chat of this content, with the content's length for a seed."""
    prompt = fake_text().chat_prompt([{"role": "user", "content": content}]).ids
    sampling = Sampling(temperature=1.0)
    opening = Opening(stream=0, prompt=prompt, most=most, sampling=sampling, seed=len(content))
    return fake_text().vocabulary.decode(model.reply(opening, most, ()))


async def told(client: Client, content: str, most: int, *, stream: bool) -> str:
    body = chat(messages=[{"role": "user", "content": content}], max_tokens=most)
    body |= {"seed": len(content), "ignore_eos": True, "stream": stream}
    if stream:
        *events, done = await client.stream(CHAT, body)
        assert done == "[DONE]"
        return text_of(events)
    status, answer = await client.post(CHAT, body)
    assert status == 200, answer
    return str(answer["choices"][0]["message"]["content"])


# -- company -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [*range(1, 10), 16])
async def test_twenty_at_once_each_read_their_own_reply_at_every_width(lanes: int) -> None:
    asks = [("x" * (index + 1), 3 + index % 7 * 4) for index in range(20)]
    held = Gate("round")
    async with server(FakeOptions(lanes=lanes, drafts=3, hook=held)) as client:
        asked = [
            asyncio.create_task(told(client, content, most, stream=index % 2 > 0))
            for index, (content, most) in enumerate(asks)
        ]
        await client.until("started", len(asks))
        held.opened.set()
        assert await asyncio.gather(*asked) == [said(*ask) for ask in asks]


async def test_more_replies_than_lanes_in_one_request_are_all_made() -> None:
    prompts, lanes = ["abc", "d", "ef"], 2
    async with server(FakeOptions(lanes=lanes)) as client:
        body = {**BODY, "prompt": prompts, "n": lanes}
        _, whole = await client.post(PLAIN, body)
        *events, done = await client.stream(PLAIN, body | {"stream": True})
        alone = [await client.plain(**{**BODY, "prompt": one, "n": lanes}) for one in prompts]
    wanted = [choice["text"] for one in alone for choice in one["choices"]]
    assert [choice["text"] for choice in whole["choices"]] == wanted
    assert [text_of(events, index) for index in range(len(wanted))] == wanted
    assert done == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_takes_all_of_its_replies_along(stream: bool) -> None:
    held = Gate("round")
    async with server(FakeOptions(lanes=4, hook=held)) as client:
        body = {**BODY, "prompt": ["abc", "d"], "n": 3, "max_tokens": 4000, "stream": stream}
        asked = asyncio.create_task(client.session.post(PLAIN, json=body))
        await client.until("started", 6)
        await held.wait_reached()
        if stream:
            (await asked).close()
        else:
            asked.cancel()
        async with asyncio.timeout(5):
            while client.here.service.mailroom.inboxes:
                await asyncio.sleep(0.005)
        held.opened.set()
        await client.until("aborted", 6)
        assert client.engine.streams == {}
        assert client.engine.counts["round"] < 5


class Tokenizing:
    """Holds the tokenization of texts with a z in them until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.gone = threading.Event(), threading.Event()
        self.encode = fake_text().vocabulary.encode
        monkeypatch.setattr(fake_text().vocabulary, "encode", self.slowly)

    def slowly(self, text: str, **options: Any) -> Any:
        if "z" in text:
            self.begun.set()
            assert self.gone.wait(10)
        return self.encode(text, **options)


async def test_a_client_that_leaves_while_its_prompt_is_tokenized_is_never_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizing = Tokenizing(monkeypatch)
    async with server() as client:
        asked = asyncio.create_task(client.post(PLAIN, BODY | {"prompt": "z"}))
        assert await asyncio.to_thread(tokenizing.begun.wait, 5)
        asked.cancel()
        service = client.here.service
        async with asyncio.timeout(5):
            while service.bodies.held:
                await asyncio.sleep(0.005)
        tokenizing.gone.set()
        await client.plain(**BODY)
        assert service.host.stats().started == 1
        assert service.mailroom.inboxes == {}


async def test_a_prompt_that_is_tokenized_while_the_server_closes_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizing = Tokenizing(monkeypatch)
    async with server() as client:
        asked = [
            asyncio.create_task(client.post(PLAIN, BODY | {"prompt": "z", "stream": stream}))
            for stream in (False, True)
        ]
        assert await asyncio.to_thread(tokenizing.begun.wait, 5)
        client.here.closing.begin(10)
        assert await client.here.closing.wait(5)
        tokenizing.gone.set()
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*asked)
        for status, answer in answers:
            assert (status, answer["error"]["message"]) == (503, "the server is shutting down")


# -- what goes wrong on the server's side --------------------------------------------------------


def break_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies with special tokens shown cannot be read from their fourth delivery on."""
    feed, fed = Reader.feed, dict[int, int]()

    def breaks(reader: Reader, tokens: Sequence[int]) -> list[Part]:
        fed[id(reader)] = fed.get(id(reader), 0) + 1
        if not reader.rules.skip_special and fed[id(reader)] > 3:
            raise LookupError("no such piece")
        return feed(reader, tokens)

    monkeypatch.setattr(Reader, "feed", breaks)


async def test_an_answer_that_cannot_be_made_ends_with_its_error_and_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = Gate("round")
    async with server(FakeOptions(hook=held)) as client:
        break_reading(monkeypatch)
        broken = {**BODY, "max_tokens": 4000, "skip_special_tokens": False}
        streamed = asyncio.create_task(client.stream(PLAIN, broken | {"stream": True}))
        whole = asyncio.create_task(client.post(PLAIN, broken))
        beside = asyncio.create_task(client.plain(**BODY))
        await client.until("started", 3)
        held.opened.set()
        *events, error = await streamed
        status, answer = await whole
        await client.until("aborted", 2)
        monkeypatch.undo()
        assert (await beside)["choices"] == (await client.plain(**BODY))["choices"]
    assert text_of(events)
    assert all(event["choices"][0]["finish_reason"] is None for event in events)
    for one in (error, answer):
        assert (one["error"]["type"], one["error"]["message"]) == (
            "internal_error",
            "internal error",
        )
    assert status == 500
    assert caplog.text.count("LookupError: no such piece") == 2


async def test_an_end_that_cannot_be_counted_still_reaches_every_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = Metrics.ended

    def breaks(metrics: Metrics, end: End) -> None:
        if end.counts.tokens == 5:
            raise ValueError("counters can only be incremented by non-negative amounts")
        ended(metrics, end)

    monkeypatch.setattr(Metrics, "ended", breaks)
    held = Gate("round")
    async with server(FakeOptions(hook=held)) as client:
        asked = [
            asyncio.create_task(client.plain(**{**BODY, "max_tokens": 5, "n": n})) for n in (1, 2)
        ]
        await client.until("started", 3)
        held.opened.set()
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*asked)
    assert [len(answer["choices"]) for answer in answers] == [1, 2]
