"""How other servers have failed their clients, over a fake engine: none of it is ours."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tensorfold.backends.fake import model
from tensorfold.backends.fake.options import Call, FakeOptions
from tensorfold.core.engine_api import Opening, Sampling, TokenLogprob
from tensorfold.core.lane_host.stream import End
from tensorfold.core.server.metrics import Metrics
from tensorfold.core.server.replies import PlainLogprobs, chat_logprobs
from tensorfold.core.server.sse import dumps
from tensorfold.core.text import Part, Reader
from tensorfold.core.text.template import ChatTemplate
from tests.null.calling import CHAT, PLAIN, Client, chat, fake_text, server, text_of
from tests.null.test_text_reading import spelled
from tests.null.wordy import id_of, vocabulary
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
        await asyncio.sleep(0.02)
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


# -- what is asked, and what is told -------------------------------------------------------------

NULLS = (
    "max_tokens",
    "n",
    "stop",
    "seed",
    "stream",
    "stream_options",
    "logprobs",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop_token_ids",
    "echo",
    "suffix",
    "best_of",
    "logit_bias",
    "presence_penalty",
    "user",
)


async def test_a_null_is_an_absent_field_of_completions_too() -> None:
    async with server() as client:
        for name in NULLS:
            plain = {"model": "fake", "prompt": "abc", "max_tokens": 9, "seed": 1}
            plain.pop(name, None)
            status, answer = await client.post(PLAIN, plain | {name: None})
            assert status == 200, (name, answer)
            assert answer["choices"] == (await client.post(PLAIN, plain))[1]["choices"], name


async def test_a_chat_of_no_tokens_is_refused_and_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with server() as client:
        monkeypatch.setattr(fake_text(), "template", ChatTemplate("{# nothing #}"))
        for stream in (False, True):
            status, answer = await client.post(CHAT, chat(stream=stream))
            assert (status, answer["error"]["param"]) == (400, "messages")
            assert "at least one token" in answer["error"]["message"]
        monkeypatch.undo()
        await client.chat()


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_chat_over_the_context_is_told_by_its_own_counts(field: str) -> None:
    async with server(FakeOptions(context=256)) as client:
        fits = {"messages": [{"role": "user", "content": "x" * 100}], "model": "fake"}
        rows = (await client.post(CHAT, fits | {field: 1}))[1]["usage"]["prompt_tokens"]
        assert (await client.post(CHAT, fits | {field: 256 - rows}))[0] == 200
        # What does not fit is told as it is, not as what would have fitted.
        for over in (1, 40):
            asked = 256 - rows + over
            status, answer = await client.post(CHAT, fits | {field: asked})
            error = answer["error"]
            assert (status, error["code"]) == (400, "context_length_exceeded")
            assert error["param"] == field
            words = f"{256 + over} tokens ({rows} in the messages, {asked} in the completion)"
            assert words in error["message"]
        fits["messages"][0]["content"] = "x" * 400
        status, answer = await client.post(CHAT, fits)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert f"your messages resulted in {rows + 300} tokens" in answer["error"]["message"]


@pytest.mark.parametrize("stop", [False, True])
async def test_a_streams_chunks_have_no_reason_but_the_last_which_has_one(stop: bool) -> None:
    """Neither an empty text in the middle nor a null at the end, whichever the route."""
    for path, body in ((PLAIN, BODY), (CHAT, chat(max_tokens=20, seed=3, ignore_eos=True))):
        async with server(FakeOptions(drafts=3)) as client:
            *events, _ = await client.stream(path, {**body, "stream": True})
            text = text_of(events)
            if stop:
                asked = {**body, "stream": True, "stop": text[-4:-1]}
                *events, _ = await client.stream(path, asked)
        *told, last = [event["choices"][0]["finish_reason"] for event in events]
        assert told == [None] * len(told)
        assert last == ("stop" if stop else "length")


async def test_log_probabilities_of_cut_characters_are_json_and_name_their_bytes() -> None:
    known = vocabulary()
    tokens = [id_of(one) for one in spelled("a🎉é")]
    entries = [
        TokenLogprob(token=token, logprob=-1.5, top=((token, -1.5), (other, -math.inf)))
        for token, other in zip(tokens, reversed(tokens), strict=True)
    ]
    chats = json.loads(dumps(chat_logprobs(entries, known)))["content"]
    assert bytes(byte for one in chats for byte in one["bytes"]).decode() == "a🎉é"
    assert [one["token"] for one in chats][:2] == ["a", "bytes:\\xf0"]
    assert all(len(one["top_logprobs"]) == 2 for one in chats)
    plain = json.loads(dumps(PlainLogprobs(known).shape(entries)))
    assert plain["token_logprobs"] == [-1.5] * len(tokens)
    assert plain["top_logprobs"][0] == {"a": -1.5, "bytes:\\xa9": -9999.0}
    assert plain["text_offset"] == [0, 1, 1, 1, 1, 2, 2]


async def test_times_to_first_token_and_their_parts_are_those_that_passed() -> None:
    """As many as replies that had a token, and none of no length."""
    spent = 0.02

    def cost(call: Call) -> float:
        return spent if call.kind.endswith(".land") else 0.0

    async with server(FakeOptions(lanes=1, cost=cost, wait=time.sleep)) as client:
        await asyncio.gather(*(client.plain(**{**BODY, "max_tokens": 3}) for _ in range(2)))
        found = await client.metrics()

    def seconds(name: str) -> float:
        assert found[f"{name}_seconds_count"] == 2
        return found[f"{name}_seconds_sum"]

    # A fill and two rounds each, the second reply behind the first.
    assert 2 * spent <= seconds("request_prefill_time")
    assert 4 * spent <= seconds("request_decode_time")
    assert 3 * spent <= seconds("request_queue_time")
    assert 5 * spent <= seconds("time_to_first_token")
    assert found['time_to_first_token_seconds_bucket{le="0.01"}'] == 0
    parts = ("request_queue_time", "request_prefill_time", "request_decode_time")
    assert seconds("e2e_request_latency") == pytest.approx(sum(map(seconds, parts)))


def joined(events: list[Any], name: str) -> list[Any]:
    """What a stream's chunks tell under a name, in a row."""
    told = [choice.get(name) for event in events for choice in event["choices"]]
    if name == "token_ids":
        return [token for one in told if one for token in one]
    return [entry for one in told if one for entry in one["content"]]


@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
async def test_chunks_of_many_tokens_join_up_to_the_whole_reply_wherever_it_stops(
    drafts: int,
) -> None:
    asked = chat(max_tokens=40, temperature=0, logprobs=True, top_logprobs=2, ignore_eos=True)
    asked["return_token_ids"] = True
    async with server(FakeOptions(drafts=drafts, wrong_in=9)) as client:
        (free,) = (await client.chat(**asked))["choices"]
        text, tokens = free["message"]["content"], free["token_ids"]
        entries = free["logprobs"]["content"]
        for place in (None, *range(0, 36, 5)):
            stop = None if place is None else text[place : place + 3]
            end = len(text) if stop is None else text.index(stop)
            ends = len(text) if stop is None else end + 3
            body = asked | {"stop": stop}
            (whole,) = (await client.chat(**body))["choices"]
            *events, done = await client.stream(CHAT, body | {"stream": True})
            assert done == "[DONE]"
            for said in (whole["message"]["content"], text_of(events)):
                assert said == text[:end]
            for ids in (whole["token_ids"], joined(events, "token_ids")):
                assert ids == tokens[:ends]
            for told in (whole["logprobs"]["content"], joined(events, "logprobs")):
                assert told == entries[:ends]
            reasons = {whole["finish_reason"], events[-1]["choices"][0]["finish_reason"]}
            assert reasons == {"length" if stop is None else "stop"}
            most = max(len(event["choices"][0].get("token_ids", ())) for event in events)
            assert (most > 1) == (drafts > 0 or stop is not None)
