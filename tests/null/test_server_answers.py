"""What an answer holds: the stream's shape, usage, stops, several replies, logprobs, receipts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tensorfold.backends.fake import model
from tensorfold.core.engine_api import Opening, Sampling
from tensorfold.core.keyed import derived_seed, sibling_seed, token_sha256
from tests.null.calling import CHAT, HELLO, PLAIN, chat, fake_text, server, text_of

pytestmark = pytest.mark.asyncio


def expected(prompt: tuple[int, ...], most: int, seed: int = 0, temperature: float = 1.0) -> Any:
    """The tokens that the fake's definition gives."""
    opening = Opening(
        stream=0, prompt=prompt, most=most, sampling=Sampling(temperature=temperature), seed=seed
    )
    return model.reply(opening, most, (model.END_TOKEN,))


def spelled(tokens: list[int]) -> str:
    return fake_text().vocabulary.decode(tokens)


async def test_a_chat_stream_has_the_shape_that_clients_rely_on() -> None:
    async with server() as client:
        events = await client.stream(CHAT, chat(stream=True))
        whole = await client.chat()
    assert events.pop() == "[DONE]"
    first, *middle, last = events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "length"
    for event in events:
        assert event["object"] == "chat.completion.chunk"
        assert event["id"].startswith("chatcmpl-")
        assert (event["id"], event["created"]) == (first["id"], first["created"])
        assert (event["model"], event["system_fingerprint"]) == ("fake", "fake")
        assert type(event["created"]) is int
        assert [choice["index"] for choice in event["choices"]] == [0]
        assert "usage" not in event
    for event in [first, *middle]:
        assert event["choices"][0]["finish_reason"] is None
        assert "tensorfold" not in event
    assert all(event["choices"][0]["delta"]["content"] for event in middle)
    assert all("role" not in event["choices"][0]["delta"] for event in middle)
    assert text_of(events) == whole["choices"][0]["message"]["content"]


async def test_usage_comes_in_one_chunk_more_and_only_when_asked_for() -> None:
    async with server() as client:
        whole = await client.chat()
        events = await client.stream(
            CHAT, chat(stream=True, stream_options={"include_usage": True})
        )
        plain = await client.stream(
            PLAIN,
            {
                "model": "fake",
                "prompt": "abc",
                "max_tokens": 3,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
    for told in (events, plain):
        assert told.pop() == "[DONE]"
    usage = events[-1]
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 8
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["tensorfold"]["token_sha256"] == whole["tensorfold"]["token_sha256"]
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert "tensorfold" not in events[-2]
    assert plain[-1]["choices"] == []
    assert plain[-1]["object"] == "text_completion"
    assert plain[-1]["usage"]["prompt_tokens"] == 3


async def test_a_completion_is_the_tokens_of_the_engine_whole_and_streamed() -> None:
    prompt = fake_text().vocabulary.encode("abc")
    tokens = expected(prompt, 20, seed=5)
    body = {"model": "fake", "prompt": "abc", "max_tokens": 20, "seed": 5, "return_token_ids": True}
    async with server() as client:
        whole = await client.plain(**body)
        by_ids = await client.plain(**(body | {"prompt": list(prompt)}))
        *events, done = await client.stream(PLAIN, body | {"stream": True})
    assert done == "[DONE]"
    choice = whole["choices"][0]
    assert whole["object"] == "text_completion"
    assert whole["id"].startswith("cmpl-")
    assert (choice["text"], choice["token_ids"]) == (spelled(tokens), tokens)
    assert whole["prompt_token_ids"] == list(prompt)
    assert by_ids["choices"] == whole["choices"]
    assert text_of(events) == spelled(tokens)
    assert [id for event in events for id in event["choices"][0]["token_ids"]] == tokens
    assert events[0]["prompt_token_ids"] == list(prompt)


async def test_a_receipt_proves_the_reply() -> None:
    async with server() as client:
        body = await client.plain(prompt="abc", max_tokens=20, seed=-7, return_token_ids=True)
    receipt, tokens = body["tensorfold"], body["choices"][0]["token_ids"]
    assert receipt["token_sha256"] == token_sha256(tokens)
    assert receipt["prompt_sha256"] == token_sha256(fake_text().vocabulary.encode("abc"))
    assert (receipt["engine"], receipt["seed"]) == ("fake", -7)
    assert body["system_fingerprint"] == receipt["engine"]
    assert receipt["rounds"] == len(tokens) - 1
    speed = (len(tokens) - 1) / receipt["decode_seconds"]
    assert math.isclose(receipt["tokens_per_second"], speed)
    assert all(receipt[name] >= 0 for name in ("queue_seconds", "prefill_seconds", "cached"))


async def test_without_a_seed_a_prompt_repeats_its_reply_and_with_one_the_seed_does() -> None:
    prompt = fake_text().vocabulary.encode("abc")
    async with server() as client:
        bodies = [await client.plain(prompt="abc", max_tokens=30) for _ in range(2)]
        seeded = await client.plain(prompt="abc", max_tokens=30, seed=(1 << 63) - 1)
    seed = derived_seed(",".join(map(str, prompt)).encode())
    texts = [body["choices"][0]["text"] for body in bodies]
    assert texts == [spelled(expected(prompt, 30, seed))] * 2
    text = seeded["choices"][0]["text"]
    assert text == spelled(expected(prompt, 30, (1 << 63) - 1)) != texts[0]


async def test_n_replies_have_seeds_of_their_own_and_share_their_prompts_tokens() -> None:
    prompt = fake_text().vocabulary.encode("abc")
    body = {"prompt": "abc", "max_tokens": 12, "n": 8, "seed": 3}
    async with server() as client:
        whole = await client.plain(**body)
        *events, _ = await client.stream(PLAIN, {"model": "fake", "stream": True, **body})
        chats = await client.chat(n=2)
    wanted = [spelled(expected(prompt, 12, sibling_seed(3, index))) for index in range(8)]
    assert [choice["text"] for choice in whole["choices"]] == wanted
    assert [text_of(events, index) for index in range(8)] == wanted
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["usage"]["completion_tokens"] <= 96
    receipts = whole["tensorfold"]["replies"]
    assert [one["seed"] for one in receipts] == [sibling_seed(3, index) for index in range(8)]
    ends = [event for event in events if event["choices"][0]["finish_reason"]]
    assert sorted(event["choices"][0]["index"] for event in ends) == list(range(8))
    assert "tensorfold" in ends[-1]
    assert not any("tensorfold" in event for event in ends[:-1])
    assert [choice["index"] for choice in chats["choices"]] == [0, 1]


async def test_several_prompts_are_answered_in_order() -> None:
    async with server() as client:
        body = await client.plain(prompt=["abc", "d"], max_tokens=5, n=2, seed=1)
        alone = [await client.plain(prompt=one, max_tokens=5, n=2, seed=1) for one in ("abc", "d")]
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == [choice["text"] for one in alone for choice in one["choices"]]
    assert body["usage"]["prompt_tokens"] == 4


async def test_a_stop_ends_the_reply_is_left_out_and_is_named() -> None:
    prompt = fake_text().vocabulary.encode("abc")
    tokens = expected(prompt, 30, seed=5)
    text = spelled(tokens)
    stop = text[10:13]
    async with server() as client:
        body = {"prompt": "abc", "max_tokens": 30, "seed": 5, "stop": ["never there", stop]}
        whole = await client.plain(**body)
        *events, _ = await client.stream(PLAIN, {"model": "fake", "stream": True, **body})
        one = await client.plain(**(body | {"stop": stop}))
    for choice in (whole["choices"][0], one["choices"][0]):
        assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")
        assert choice["stop_reason"] == stop
    assert text_of(events) == whole["choices"][0]["text"]
    assert all(event["choices"][0]["text"] for event in events[:-1])
    # The reply ends with the token that completed the stop; nothing after it is counted.
    ended = tokens[: text.index(stop) + len(stop)]
    assert whole["usage"]["completion_tokens"] == len(ended)
    assert whole["tensorfold"]["token_sha256"] == token_sha256(ended)


async def test_what_a_stop_held_back_is_told_when_the_reply_ends_without_it() -> None:
    prompt = fake_text().vocabulary.encode("abc")
    text = spelled(expected(prompt, 12, seed=5))
    async with server() as client:
        body = {"prompt": "abc", "max_tokens": 12, "seed": 5, "stop": text[-3:] + "never"}
        whole = await client.plain(**body)
        *events, _ = await client.stream(PLAIN, {"model": "fake", "stream": True, **body})
    assert whole["choices"][0]["text"] == text_of(events) == text
    assert whole["choices"][0]["finish_reason"] == "length"


async def test_end_tokens_stop_unless_they_are_to_be_ignored() -> None:
    async with server() as client:
        free = await client.plain(prompt="abc", max_tokens=400, seed=1, return_token_ids=True)
        tokens = free["choices"][0]["token_ids"]
        assert tokens[-1] == model.END_TOKEN
        assert free["choices"][0]["finish_reason"] == "stop"
        assert free["choices"][0]["stop_reason"] is None
        assert "<|end|>" not in free["choices"][0]["text"]
        longer = await client.plain(prompt="abc", max_tokens=400, seed=1, ignore_eos=True)
        assert longer["usage"]["completion_tokens"] == 400
        assert longer["choices"][0]["finish_reason"] == "length"
        stopped = await client.plain(
            prompt="abc", max_tokens=400, seed=1, stop_token_ids=[tokens[4]], return_token_ids=True
        )
    first = tokens.index(tokens[4])
    assert stopped["choices"][0]["token_ids"] == tokens[: first + 1]
    assert stopped["choices"][0]["text"] == spelled(tokens[:first])
    assert stopped["choices"][0]["stop_reason"] == tokens[4]


async def test_one_token_is_one_token() -> None:
    async with server() as client:
        body = await client.chat(max_tokens=1)
        *events, _ = await client.stream(
            CHAT, chat(max_completion_tokens=1, max_tokens=1, stream=True)
        )
    assert body["usage"]["completion_tokens"] == 1
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["tensorfold"]["tokens_per_second"] is None
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_reasoning_is_told_in_both_fields_and_counted() -> None:
    # The prompt ends with a colon, which opens the reasoning here.
    prompt = fake_text().chat_prompt(HELLO).ids
    tokens = expected(prompt, 40, seed=2)
    close = spelled(tokens)[15]
    at = spelled(tokens).index(close)
    for fields in (("reasoning", "reasoning_content"), ("reasoning",), ("reasoning_content",)):
        setting = "both" if len(fields) == 2 else fields[0]
        async with server(think=":" + close, reasoning_field=setting) as client:
            body = await client.chat(max_tokens=40, seed=2)
            *events, _ = await client.stream(CHAT, chat(max_tokens=40, seed=2, stream=True))
        message = body["choices"][0]["message"]
        text = spelled(tokens)
        assert {name for name in message if name.startswith("reasoning")} == set(fields)
        for name in fields:
            assert message[name] == text_of(events, field=name) == text[:at]
        assert message["content"] == text_of(events) == text[at + 1 :]
        assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": at + 1}


async def test_chat_logprobs_have_bytes_and_alternatives() -> None:
    async with server() as client:
        body = await client.chat(logprobs=True, top_logprobs=3, temperature=0)
        bare = await client.chat(logprobs=True)
        none = await client.chat()
        *events, _ = await client.stream(
            CHAT, chat(stream=True, logprobs=True, top_logprobs=3, temperature=0)
        )
    entries = body["choices"][0]["logprobs"]["content"]
    text = body["choices"][0]["message"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == text
    assert "".join(entry["token"] for entry in entries) == text
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] < 0
    streamed = [
        entry
        for event in events
        if event["choices"][0]["logprobs"]
        for entry in event["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == entries
    assert all(entry["top_logprobs"] == [] for entry in bare["choices"][0]["logprobs"]["content"])
    assert none["choices"][0]["logprobs"] is None


async def test_the_token_that_ends_a_reply_has_no_text_and_no_logprobs() -> None:
    async with server() as client:
        body = await client.plain(prompt="abc", max_tokens=400, seed=1, logprobs=0)
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert body["usage"]["completion_tokens"] == len(choice["text"]) + 1


async def test_completion_logprobs_have_offsets() -> None:
    async with server() as client:
        body = await client.plain(prompt="abc", max_tokens=9, logprobs=2, temperature=0)
        *events, _ = await client.stream(
            PLAIN,
            {
                "model": "fake",
                "prompt": "abc",
                "max_tokens": 9,
                "logprobs": 2,
                "temperature": 0,
                "stream": True,
            },
        )
    logprobs = body["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == body["choices"][0]["text"]
    assert logprobs["text_offset"] == list(range(len(logprobs["tokens"])))
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])
    streamed = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["text"]]
    assert [one for piece in streamed for one in piece["text_offset"]] == logprobs["text_offset"]


async def test_the_models_are_listed_with_their_aliases_and_an_alias_is_answered() -> None:
    async with server() as client:
        for prefix in ("", "/v1"):
            _, body = await client.get(prefix + "/models")
            assert [card["id"] for card in body["data"]] == ["fake", "other"]
            assert body["data"][0]["max_model_len"] == 4096
            status, card = await client.get(prefix + "/models/other")
            assert (status, card["id"], card["object"]) == (200, "other", "model")
        status, body = await client.get("/v1/models/gpt")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert (await client.chat(model="other"))["model"] == "other"
        assert (await client.post("/chat/completions", chat()))[0] == 200


async def test_a_person_and_a_probe_are_told_what_this_is() -> None:
    async with server() as client:
        async with client.session.head("/") as response:
            assert response.status == 200
        status, page = await client.get("/")
        assert status == 200
        assert "serving" in page
        _, info = await client.get("/info")
        assert (info["lanes"], info["identity"], info["model"]) == (8, "fake", "fake")
        _, about = await client.get("/version")
        assert about["version"] == info["version"]


async def test_a_request_id_is_echoed_if_it_is_sane_and_is_in_the_replys_id() -> None:
    async with server() as client:
        for given, kept in (("abc-1", True), ("x" * 200, False), ("a b", False), (None, False)):
            headers = {} if given is None else {"x-request-id": given}
            async with client.session.post(CHAT, json=chat(), headers=headers) as response:
                told = response.headers["x-request-id"]
                assert (told == given) == kept
                assert (await response.json())["id"] == "chatcmpl-" + told


async def test_browsers_are_answered_only_where_an_origin_is_allowed() -> None:
    async with server(cors="https://app.example") as client:
        async with client.session.options(CHAT) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
            assert "POST" in response.headers["Access-Control-Allow-Methods"]
            assert "Access-Control-Allow-Credentials" not in response.headers
        async with client.session.post(CHAT, json=chat(stream=True)) as response:
            assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
    async with server() as client, client.session.options(CHAT) as response:
        assert response.status == 405
        assert "Access-Control-Allow-Origin" not in response.headers


async def test_a_streams_headers_keep_proxies_from_holding_it_back() -> None:
    async with (
        server() as client,
        client.session.post(CHAT, json=chat(stream=True)) as response,
    ):
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"


async def test_a_final_message_is_continued() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "so far"}]
    async with server() as client:
        body = await client.chat(
            messages=messages, continue_final_message=True, return_token_ids=True
        )
    assert spelled(body["prompt_token_ids"]).endswith("assistant: so far")
