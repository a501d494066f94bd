"""What a request makes of its engine: jobs, seeds, defaults; and the loop that stays free."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tensorfold.core.engine_api import Sampling
from tensorfold.core.keyed import derived_seed, sibling_seed
from tensorfold.core.lane_host.stream import Counts, Job, never
from tensorfold.core.server.receipt import usage
from tensorfold.core.server.sse import LINE_ENDS, dumps
from tensorfold.core.text import Defaults
from tensorfold.core.text.template import ChatTemplate
from tests.null.calling import CHAT, HELLO, PLAIN, Client, chat, fake_text, server

pytestmark = pytest.mark.asyncio


def watch_jobs(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that the host is handed from now on."""
    jobs: list[Job] = []
    host = client.here.service.host
    submit = host.submit

    def submitted(given: Sequence[Job]) -> None:
        jobs.extend(given)
        submit(given)

    monkeypatch.setattr(host, "submit", submitted)
    return jobs


async def test_every_field_reaches_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": -3,
        "max_completion_tokens": 4,
        "max_tokens": None,
        "priority": "background",
        "draft": False,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 5,
        "stop_token_ids": [1, 2],
        "stop": "x",
    }
    async with server() as client:
        jobs = watch_jobs(client, monkeypatch)
        await client.chat(**fields)
        await client.chat(ignore_eos=True, seed=None)
        await client.plain(prompt="abc", max_tokens=3, logprobs=0)
    for index, job in enumerate(jobs[:2]):
        assert job.sampling == Sampling(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1)
        assert (job.most, job.logprobs, job.seed) == (4, 5, sibling_seed(-3, index))
        assert (job.background, job.draft) == (True, False)
        assert job.end_tokens == {1, 2, 96}
        assert job.prompt == fake_text().chat_prompt(HELLO).ids
        assert job.ends is not never
    assert jobs[0].ends is not jobs[1].ends
    plain, completion = jobs[2:]
    assert plain.sampling == Sampling(temperature=1.0)
    assert (plain.end_tokens, plain.logprobs, plain.ends) == (frozenset(), None, never)
    assert (plain.background, plain.draft) == (False, True)
    assert plain.seed == derived_seed(",".join(map(str, plain.prompt)).encode())
    assert (completion.logprobs, completion.end_tokens) == (0, {96})


async def test_many_replies_hold_what_they_have_in_common_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request may bring hundreds of prompts beside every token of a vocabulary as an end."""
    async with server() as client:
        jobs = watch_jobs(client, monkeypatch)
        await client.plain(prompt=["abc", "d"], n=2, stop_token_ids=list(range(90)), stop="x")
    assert len(jobs) == 4
    assert len({id(job.end_tokens) for job in jobs}) == 1
    assert [id(job.prompt) for job in jobs[::2]] == [id(job.prompt) for job in jobs[1::2]]


async def test_defaults_are_the_checkpoints_then_the_settings_then_the_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Defaults(temperature=0.7, top_p=0.8, top_k=20, min_p=0.05)
    monkeypatch.setattr(fake_text(), "defaults", own)
    async with server() as client:
        jobs = watch_jobs(client, monkeypatch)
        await client.chat()
        await client.chat(temperature=0, top_p=1, top_k=-1, min_p=0)
    assert jobs[0].sampling == Sampling(temperature=0.7, top_p=0.8, top_k=20, min_p=0.05)
    assert jobs[1].sampling == Sampling()
    async with server(temperature=0.0, top_p=0.5, top_k=0, min_p=0.2, max_tokens=6) as client:
        jobs = watch_jobs(client, monkeypatch)
        await client.chat(max_tokens=None)
    assert jobs[0].sampling == Sampling(temperature=0.0, top_p=0.5, top_k=0, min_p=0.2)
    assert jobs[0].most == 6
    async with server(min_p=0.0, top_k=0) as client:
        jobs = watch_jobs(client, monkeypatch)
        await client.chat()
    assert jobs[0].sampling == Sampling(temperature=0.7, top_p=0.8)


async def test_template_fields_reach_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    text = fake_text()
    chat_prompt = text.chat_prompt

    def watched(messages: Any, **options: Any) -> Any:
        seen.append({"messages": messages, **options})
        return chat_prompt(messages, **options)

    monkeypatch.setattr(text, "chat_prompt", watched)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    messages = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "user", "content": "x", "name": "me"},
    ]
    async with server() as client:
        await client.chat(messages=messages, reasoning_effort="low")
        await client.chat(reasoning_effort="none", add_generation_prompt=False)
        await client.chat(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "max"})
    assert list(seen[0]["messages"]) == [
        {"role": "system", "content": "ab"},
        {
            "role": "assistant",
            "content": "",
            "reasoning": "r",
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}}
            ],
        },
        {"role": "tool", "content": "done", "tool_call_id": "c"},
        {"role": "user", "content": "x", "name": "me"},
    ]
    assert [one["values"] for one in seen] == [
        {"reasoning_effort": "low"},
        {"enable_thinking": False},
        {"reasoning_effort": "max"},
    ]
    assert [one["add_generation_prompt"] for one in seen] == [True, False, True]


@pytest.mark.parametrize("path", [CHAT, PLAIN])
async def test_a_long_tokenization_holds_nobody_else_up(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = fake_text().vocabulary
    encode, opened = vocabulary.encode, threading.Event()

    def slowly(text: str, **options: Any) -> Any:
        if "abc" in text:
            assert opened.wait(10)
        return encode(text, **options)

    monkeypatch.setattr(vocabulary, "encode", slowly)
    long = {"prompt": "abc", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 1}
    async with server() as client:
        asked = asyncio.create_task(client.post(path, {"model": "fake", **long}))
        await asyncio.sleep(0.01)
        assert (await client.get("/health"))[0] == 200
        await client.chat()
        assert not asked.done()
        opened.set()
        assert (await asked)[0] == 200


async def test_equal_request_ids_do_not_collide() -> None:
    async with server() as client:
        body = chat(max_tokens=50, ignore_eos=True)
        options = {"headers": {"x-request-id": "same"}}
        answers = await asyncio.gather(*(client.post(CHAT, body, **options) for _ in range(8)))
    assert {status for status, _ in answers} == {200}
    assert len({json.dumps(answer["choices"]) for _, answer in answers}) == 1


async def test_a_template_that_refuses_a_chat_is_the_callers_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    monkeypatch.setattr(fake_text(), "template", template)
    async with server() as client:
        status, answer = await client.post(CHAT, chat())
        assert (status, answer["error"]["message"]) == (400, "roles must alternate")
        assert (await client.post(PLAIN, {"model": "fake", "prompt": "abc"}))[0] == 200


async def test_an_event_is_one_line_to_every_reader() -> None:
    text = dumps({"a": "\u2028\u2029\u0085\r\n世"}).translate(LINE_ENDS)
    assert len(text.splitlines()) == 1
    assert json.loads(text) == {"a": "\u2028\u2029\u0085\r\n世"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(float("nan"))


async def test_usage_counts_a_prompt_once_however_many_replies_it_has() -> None:
    counts = [Counts(tokens=3, cached=16), Counts(tokens=5, cached=32)] * 2
    found = usage([40, 50], counts, 4)
    assert found == {
        "prompt_tokens": 90,
        "completion_tokens": 16,
        "total_tokens": 106,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
