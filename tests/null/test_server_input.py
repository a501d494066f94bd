"""Requests that cannot be answered are refused in OpenAI's shape, and the server goes on."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import tracemalloc
from typing import Any

import pytest

from tensorfold.core.server.wire import parse_object
from tests.null.calling import CHAT, HELLO, PLAIN, chat, server

pytestmark = pytest.mark.asyncio
Case = tuple[str, Any, int, str | None, str]


def raw(text: str) -> bytes:
    """A chat's body with something in it that JSON libraries do not write."""
    return f'{{"model": "fake", "messages": {json.dumps(HELLO)}, {text}}}'.encode()


def message(**fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": "x", **fields}])


def field(name: str, value: Any, words: str, path: str = CHAT) -> Case:
    body = chat(**{name: value}) if path == CHAT else {"model": "fake", "prompt": "x", name: value}
    return path, body, 400, name, words


WRONG_TYPES = [
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", [1]),
    ("top_p", "0.5"),
    ("top_k", 1.5),
    ("min_p", {}),
    ("n", "2"),
    ("n", True),
    ("max_tokens", "5"),
    ("max_tokens", True),
    ("max_tokens", 1.5),
    ("max_completion_tokens", True),
    ("seed", "1"),
    ("seed", 0.5),
    ("stream", "true"),
    ("stream", 1),
    ("stop", 5),
    ("stop", [5]),
    ("stop", {"a": 1}),
    ("stop_token_ids", 5),
    ("logprobs", 1),
    ("top_logprobs", "1"),
    ("ignore_eos", 1),
    ("return_token_ids", "yes"),
    ("draft", 0),
    ("priority", 5),
    ("priority", "urgent"),
    ("chat_template_kwargs", []),
    ("reasoning_effort", 3),
    ("reasoning_effort", "enormous"),
    ("add_generation_prompt", "no"),
    ("continue_final_message", 1),
    ("messages", "hello"),
    ("messages", {}),
    ("stream_options", True),
]
OUT_OF_RANGE = [
    ("temperature", 3),
    ("temperature", -0.1),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("n", 0),
    ("n", 9),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_completion_tokens", 0),
    ("seed", 1 << 63),
    ("seed", -(1 << 63) - 1),
    ("top_logprobs", 21),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["a"] * 65),
    ("stop_token_ids", [97]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [True]),
    ("messages", []),
]
UNSUPPORTED = [
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("response_format", {"type": "json_object"}),
    ("presence_penalty", 0.5),
    ("frequency_penalty", -1),
    ("repetition_penalty", 1.1),
    ("logit_bias", {"5": 1}),
    ("echo", True),
    ("best_of", 2),
    ("suffix", "end"),
    ("thinking_budget", 100),
    ("prompt_logprobs", 0),
    ("min_tokens", 3),
]
MESSAGES = [
    ("messages[0]", chat(messages=["x"])),
    ("messages[0].role", message(role="chef")),
    ("messages[0].role", message(role=None)),
    ("messages[0].content", message(content=5)),
    ("messages[0].content", message(content=None)),
    ("messages[0].content[0]", message(content=[5])),
    ("messages[0].content[0].type", message(content=[{"type": "image_url"}])),
    ("messages[0].content[0].text", message(content=[{"type": "text"}])),
    ("messages[0].tool_calls[0]", message(role="assistant", tool_calls=[1])),
    (
        "messages[0].tool_calls[0].function.arguments",
        message(
            role="assistant",
            tool_calls=[{"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}],
        ),
    ),
]
BODIES: list[Case] = [
    (CHAT, b"", 400, None, "not JSON"),
    (CHAT, b"{", 400, None, "not JSON"),
    (CHAT, b"[]", 400, None, "must be a JSON object"),
    (CHAT, b'{"model": "\xff"}', 400, None, "not UTF-8: byte 11"),
    (CHAT, b"\xed\xa0\x80", 400, None, "not UTF-8"),
    (CHAT, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 400, None, "nested more than"),
    (CHAT, b"[" * 10_000 + b"]" * 10_000, 400, None, "nested more than"),
    (CHAT, b'{"a":' * 70 + b"1" + b"}" * 70, 400, None, "nested more than"),
    (CHAT, b'{"seed": ' + b"1" * 5000 + b"}", 400, None, "a number is too long"),
    (CHAT, raw('"temperature": NaN'), 400, "temperature", "finite number, not nan"),
    (CHAT, raw('"temperature": 1e400'), 400, "temperature", "finite number, not inf"),
    (CHAT, raw('"top_p": -Infinity'), 400, "top_p", "finite number, not -inf"),
    (CHAT, raw('"whatever": {"deep": [NaN]}'), 400, "whatever.deep[0]", "finite number"),
    (CHAT, raw('"stop": "\\ud800"'), 400, "stop", r"lone surrogate, \ud800"),
    (CHAT, raw('"user": "\\udc00x"'), 400, "user", "lone surrogate"),
    (CHAT, raw('"\\ud800": 1'), 400, "the body", "lone surrogate"),
    (CHAT, chat(model="gpt-9"), 404, "model", "'gpt-9' does not exist; this server has fake"),
    (CHAT, {"messages": HELLO}, 400, "model", "model is required"),
    (CHAT, chat(model=5), 400, "model", "must be a string, not 5"),
    (CHAT, {"model": "fake"}, 400, "messages", "at least one message"),
    (CHAT, chat(top_logprobs=2), 400, "top_logprobs", "needs logprobs"),
    (CHAT, chat(stream_options={}), 400, "stream_options", "needs stream"),
    (CHAT, chat(max_completion_tokens=9), 400, "max_completion_tokens", "give one of them"),
    (
        CHAT,
        chat(continue_final_message=True, add_generation_prompt=True),
        400,
        "continue_final_message",
        "exclude each other",
    ),
    (CHAT, chat(chat_template_kwargs={"messages": []}), 400, "chat_template_kwargs", "messages"),
    (PLAIN, {"model": "fake"}, 400, "prompt", "prompt must be a string"),
    (PLAIN, {"model": "fake", "prompt": ""}, 400, "prompt", "prompt is empty"),
    (PLAIN, {"model": "fake", "prompt": "\u4e16"}, 400, "prompt", "holds no token"),
    (PLAIN, {"model": "fake", "prompt": []}, 400, "prompt", "prompt must be"),
    (PLAIN, {"model": "fake", "prompt": [[]]}, 400, "prompt", "prompt[0] is empty"),
    (PLAIN, {"model": "fake", "prompt": [1, 97]}, 400, "prompt", "prompt[1] must be a token id"),
    (PLAIN, {"model": "fake", "prompt": [-1]}, 400, "prompt", "from 0 to 96, not -1"),
    (PLAIN, {"model": "fake", "prompt": [True]}, 400, "prompt", "must be a token id"),
    (PLAIN, {"model": "fake", "prompt": [1.5]}, 400, "prompt", "must be a token id"),
    (PLAIN, {"model": "fake", "prompt": ["x", 5]}, 400, "prompt", "prompt[1] must be"),
    (PLAIN, {"model": "fake", "prompt": {"a": 1}}, 400, "prompt", "prompt must be"),
    field("logprobs", 6, "from 0 to 5, not 6", PLAIN),
    field("logprobs", True, "not true", PLAIN),
    *(field(name, value, json.dumps(value)[:60]) for name, value in WRONG_TYPES),
    *(field(name, value, f"{name}") for name, value in OUT_OF_RANGE),
    *(field(name, value, f"{name} is not supported") for name, value in UNSUPPORTED),
    *((CHAT, body, 400, name, name) for name, body in MESSAGES),
]


async def test_bad_input_is_refused_by_name_and_the_server_goes_on() -> None:
    async with server() as client:
        good = await client.chat()
        for path, body, status, param, words in BODIES:
            where = f"{param}: {str(body)[:200]}"
            given, answer = await client.post(path, body)
            assert given == status, (where, answer)
            error = answer["error"]
            assert set(error) == {"message", "type", "param", "code"}, where
            assert error["type"] == "invalid_request_error", where
            assert error["code"] is None or isinstance(error["code"], str), where
            assert words in error["message"], (where, error)
            named = (
                (error["param"] or "").split("[")[0]
                if param and "[" not in param
                else error["param"]
            )
            assert named == param, (where, error)
            # A stream is refused before it begins, too.
            if isinstance(body, dict) and not {"stream", "stream_options"} & body.keys():
                assert (await client.post(path, {**body, "stream": True}))[0] == status, where
        assert (await client.get("/health"))[0] == 200
        assert (await client.chat())["choices"] == good["choices"]
        assert client.here.service.host.stats().started == 2


FINE: list[dict[str, Any]] = [
    {"max_tokens": None, "max_completion_tokens": None},
    {"top_k": -1},
    {"top_k": 0},
    {"seed": -5},
    {"seed": -(1 << 63)},
    {"seed": (1 << 63) - 1},
    {"temperature": 0, "top_p": 1, "min_p": 0},
    {"temperature": 2.0, "n": 8.0},
    {"stop": None, "stream": None, "logprobs": None, "tools": None, "response_format": None},
    {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}},
    {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1},
    {"stop": []},
    {"user": "someone", "metadata": {"a": "b"}, "store": False, "parallel_tool_calls": True},
    {"priority": "background", "draft": False, "reasoning_effort": "none"},
    {"chat_template_kwargs": {"enable_thinking": False, "anything": [1]}},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}, *HELLO]},
    {"messages": [*HELLO, {"role": "assistant", "content": None}, *HELLO]},
]


@pytest.mark.parametrize("fields", FINE, ids=lambda fields: ",".join(fields))
async def test_values_at_the_edge_are_no_errors(fields: dict[str, Any]) -> None:
    async with server() as client:
        body = await client.chat(**fields)
        assert len(body["choices"]) == fields.get("n", 1)


LONG = "k" * 100_000
HOSTILE: list[dict[str, Any]] = [
    {LONG: [[]] * 5_000},
    {"a": {LONG: {LONG: [[{}]] * 5_000}}},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=["wide", "below"])
async def test_a_long_name_over_many_values_costs_no_more_than_its_body(
    fields: dict[str, Any],
) -> None:
    body = json.dumps(chat(**fields)).encode()
    tracemalloc.start()
    try:
        assert len(parse_object(body)) == len(chat()) + 1
        assert tracemalloc.get_traced_memory()[1] < 40 * len(body)
    finally:
        tracemalloc.stop()


async def test_a_long_name_is_told_shortened_and_not_kept() -> None:
    async with server() as client:
        for wrong in (f'"{LONG}": NaN', f'"{LONG}": ["\\ud800"]', f'"{LONG}\\ud800": 1'):
            status, answer = await client.post(CHAT, raw(wrong))
            assert (status, len(json.dumps(answer)) < 500) == (400, True)
        kwargs = {LONG + "__": 1}
        status, answer = await client.post(CHAT, chat(chat_template_kwargs=kwargs))
        assert (status, len(json.dumps(answer)) < 500) == (400, True)
        await client.chat(**{LONG: 1, LONG + "2": 1})
        assert client.here.service.unknown == {LONG[:80]}


async def test_a_body_over_the_limit_and_one_of_another_kind_are_refused() -> None:
    async with server(body_limit=1 << 20) as client:
        big = json.dumps(chat(padding="x" * (2 << 20))).encode()
        status, answer = await client.post(CHAT, big)
        assert (status, answer["error"]["code"]) == (413, "body_too_large")

        async def chunks() -> Any:
            for start in range(0, len(big), 1 << 16):
                yield big[start : start + (1 << 16)]

        headers = {"Content-Type": "application/json"}
        async with client.session.post(CHAT, data=chunks(), headers=headers) as response:
            assert response.status == 413
            message = (await response.json())["error"]["message"]
            assert message == "the body is larger than 1048576 bytes"
        status, answer = await client.post(CHAT, b"{}", headers={"Content-Type": "text/plain"})
        assert (status, answer["error"]["code"]) == (415, "unsupported_media_type")
        await client.chat()


async def test_the_default_body_limit_refuses_70_mebibytes() -> None:
    async with server() as client:
        status, answer = await client.post(CHAT, b" " * (70 << 20))
        assert (status, answer["error"]["message"]) == (
            413,
            "the body is larger than 67108864 bytes",
        )


async def test_a_request_that_never_ends_is_refused_in_time() -> None:
    async with server(read_timeout=0.05) as client:
        address = client.here.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
        assert b"408" in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        await client.chat()


async def test_a_body_that_is_not_what_its_encoding_says_is_the_clients_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with server() as client:
        status, answer = await client.post(CHAT, b"no gzip", headers={"Content-Encoding": "gzip"})
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert "cannot be read" in answer["error"]["message"]
        packed = gzip.compress(json.dumps(chat()).encode())
        assert (await client.post(CHAT, packed, headers={"Content-Encoding": "gzip"}))[0] == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_context_overflow_tells_the_true_counts_in_the_words_that_agents_look_for() -> None:
    async with server() as client:
        rows = (await client.plain(prompt=[1] * 4000, max_tokens=96))["usage"]["prompt_tokens"]
        assert rows == 4000
        for prompt, most, words in (
            (
                [1] * 4000,
                97,
                "you requested 4097 tokens (4000 in the prompt, 97 in the completion)",
            ),
            ([1] * 4096, 1, "your prompt resulted in 4096 tokens."),
            ([1] * 5000, None, "your prompt resulted in 5000 tokens."),
        ):
            body = {"model": "fake", "prompt": prompt, "max_tokens": most}
            status, answer = await client.post(PLAIN, body)
            error = answer["error"]
            limit = "This model's maximum context length is 4096 tokens. However, "
            assert (status, error["code"]) == (400, "context_length_exceeded")
            assert error["message"].startswith(limit + words)
        defaulted = await client.plain(prompt=[1] * 4090, ignore_eos=True)
        assert defaulted["usage"]["completion_tokens"] == 6


async def test_unknown_fields_are_ignored_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with server() as client:
        plain = await client.chat()
        for _ in range(2):
            assert (await client.chat(mirostat=3))["choices"] == plain["choices"]
    told = [record for record in caplog.records if "mirostat" in record.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", "/v1/nothing", 404), ("GET", CHAT, 405), ("PUT", "/", 405)],
)
async def test_unknown_routes_and_methods_are_told_in_the_same_shape(
    method: str, path: str, status: int
) -> None:
    async with server() as client, client.session.request(method, path) as response:
        assert response.status == status
        error = (await response.json())["error"]
        assert path in error["message"]
        assert isinstance(error["code"], str)
