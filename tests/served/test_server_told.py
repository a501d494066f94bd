"""What servers have asked too little of a request, or told wrongly of a reply: ours does not."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import Any

import pytest

from tensorfold.backends.fake.options import Call, FakeOptions
from tensorfold.core.engine_api import TokenLogprob
from tensorfold.core.server import sse
from tensorfold.core.server.replies import PlainLogprobs, chat_logprobs
from tensorfold.core.server.sse import dumps
from tensorfold.core.text.template import ChatTemplate
from tests.null.calling import CHAT, HELLO, PLAIN, chat, fake_text, server, text_of
from tests.null.test_text_reading import spelled
from tests.null.wordy import id_of, vocabulary
from tests.served.test_server_life import Gate

pytestmark = pytest.mark.asyncio
BODY = {"model": "fake", "prompt": "abc", "max_tokens": 20, "ignore_eos": True, "seed": 3}

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
    spent, held = 0.02, Gate("fill")

    def cost(call: Call) -> float:
        return spent if call.kind.endswith(".land") else 0.0

    options = FakeOptions(lanes=1, cost=cost, wait=time.sleep, hook=held)
    async with server(options) as client:
        asked = [asyncio.create_task(client.plain(**{**BODY, "max_tokens": 3})) for _ in range(2)]
        await client.until("started", 2)
        held.opened.set()
        await asyncio.gather(*asked)
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


@pytest.mark.parametrize("path", [CHAT, PLAIN])
async def test_a_long_whole_reply_is_written_as_it_comes_and_not_at_its_end(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All streams would wait for the writing of what one reply has gathered."""
    body = BODY | {"messages": HELLO, "max_tokens": 1000, "top_logprobs": 5}
    body["logprobs"] = True if path == CHAT else 5
    sizes: list[int] = []

    def watched(value: Any) -> str:
        text = dumps(value)
        sizes.append(len(text))
        return text

    async with server(FakeOptions(drafts=3)) as client:
        monkeypatch.setattr(sse, "dumps", watched)
        async with client.session.post(path, json=body) as response:
            text = await response.text()
        most = max(sizes)
        monkeypatch.undo()
        *events, _ = await client.stream(path, body | {"stream": True})
    assert most < len(text) / 20
    (whole,) = json.loads(text)["choices"]
    told = [choice["logprobs"] for event in events for choice in event["choices"]]
    names = ["content"] if path == CHAT else list(whole["logprobs"])
    for name in names:
        streamed = [entry for one in told if one for entry in one[name]]
        assert whole["logprobs"][name] == streamed
        assert len(streamed) == 1000
    assert len(names) == (1 if path == CHAT else 4)
