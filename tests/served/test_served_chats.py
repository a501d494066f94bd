"""A real process and the real `openai` client: chats alone and among others, and the end."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import APIError, AsyncOpenAI, BadRequestError, NotFoundError

from tests.served.processes import Process, serving


class Target(NamedTuple):
    """Something that can be served: its arguments, the tokens of a reply that takes it about a
    second, and of one that takes it several."""

    arguments: tuple[str, ...]
    second: int
    long: int


TARGETS = {"fake": Target(("--backend", "fake", "--context", "60000"), 6000, 50_000)}
FAMILIES = Path(__file__).resolve().parents[2] / "families"
if any(FAMILIES.glob("glm53/tiny/*.safetensors")):
    TARGETS["tiny-glm53"] = Target(("tiny-glm53",), 120, 1500)
# One more that is not started again and again.
SERVED = dict(TARGETS)
if any(FAMILIES.glob("dsv41/tiny/*.safetensors")):
    SERVED["tiny-dsv41"] = Target(("tiny-dsv41", "--drafts", "5"), 120, 1500)
SUBJECTS = ("rain", "bread", "a lighthouse", "moss", "two foxes", "the sea", "copper", "an owl")


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]


@pytest.fixture(scope="module", params=SERVED)
def served(request: pytest.FixtureRequest) -> Target:
    return SERVED[request.param]


@pytest.fixture(scope="module")
def process(
    served: Target,
    tensorfold_command: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Process]:
    with serving(
        tensorfold_command, *served.arguments, folder=tmp_path_factory.mktemp("served")
    ) as found:
        yield found


def asked(index: int, process: Process) -> dict[str, Any]:
    """Eight chats, each its own: even ones greedy, odd ones sampled with a seed."""
    sampled = {"temperature": 1.0, "seed": index - 4}
    return {
        "model": process.model,
        "messages": [{"role": "user", "content": f"Tell me of {SUBJECTS[index]}."}],
        "max_tokens": 40 + 7 * index,
        **(sampled if index % 2 else {"temperature": 0.0}),
    }


async def streamed(client: AsyncOpenAI, body: dict[str, Any]) -> tuple[str, str, str]:
    """A chat's token hash, its text and its reason, read as a stream."""
    text, receipt, reason = "", None, ""
    async for chunk in await client.chat.completions.create(**body, stream=True):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        text += getattr(choice.delta, "reasoning_content", None) or ""
        reason = choice.finish_reason or reason
        receipt = getattr(chunk, "tensorfold", receipt)
    assert receipt is not None
    return receipt["token_sha256"], text, reason


async def run(process: Process, *, together: bool) -> list[tuple[str, str, str]]:
    bodies = [asked(index, process) for index in range(len(SUBJECTS))]
    async with process.async_client() as client:
        if together:
            return await asyncio.gather(*(streamed(client, body) for body in bodies))
        return [await streamed(client, body) for body in bodies]


def test_eight_chats_together_are_the_same_chats_alone_twice(process: Process) -> None:
    alone = asyncio.run(run(process, together=False))
    assert all(text and reason in ("stop", "length") for _, text, reason in alone)
    for _ in range(2):
        assert asyncio.run(run(process, together=True)) == alone
    assert len({sha256 for sha256, _, _ in alone}) > len(alone) // 2


def test_a_stream_is_the_whole_reply_and_its_hash_is_of_its_tokens(process: Process) -> None:
    body = asked(3, process)
    with process.client() as client:
        whole = client.chat.completions.create(**body, extra_body={"return_token_ids": True})
        _, text, reason = asyncio.run(one(process, body))
    choice: Any = whole.choices[0]
    joined = ",".join(map(str, choice.token_ids)).encode()
    receipt: Any = whole.tensorfold
    assert receipt["token_sha256"] == hashlib.sha256(joined).hexdigest()
    told = (getattr(choice.message, "reasoning_content", None) or "") + choice.message.content
    assert (told, choice.finish_reason) == (text, reason)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(choice.token_ids)
    assert whole.system_fingerprint == receipt["engine"]


async def one(process: Process, body: dict[str, Any]) -> tuple[str, str, str]:
    async with process.async_client() as client:
        return await streamed(client, body)


def test_the_clients_typed_fields_are_filled(process: Process) -> None:
    with process.client() as client:
        assert client.models.retrieve(process.model).id == process.model
        chat = client.chat.completions.create(
            **asked(1, process), n=2, logprobs=True, top_logprobs=2
        )
        assert [choice.index for choice in chat.choices] == [0, 1]
        entry = chat.choices[0].logprobs.content[0]
        assert len(entry.top_logprobs) == 2
        assert entry.logprob <= 0
        done = client.completions.create(
            model=process.model, prompt="Once", max_tokens=5, logprobs=1, stream=True
        )
        chunks = list(done)
        assert chunks[-1].choices[0].finish_reason in ("length", "stop")
        usage = client.chat.completions.create(
            **asked(2, process), stream=True, stream_options={"include_usage": True}
        )
        *_, last = usage
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens > 0


def test_errors_are_the_clients_own_kinds(process: Process) -> None:
    with process.client() as client:
        body = asked(0, process)
        with pytest.raises(NotFoundError) as missing:
            client.chat.completions.create(**(body | {"model": "gpt-9"}))
        assert missing.value.code == "model_not_found"
        with pytest.raises(BadRequestError) as long:
            client.chat.completions.create(**(body | {"max_tokens": 10_000_000}))
        assert long.value.code == "context_length_exceeded"
        assert "maximum context length is" in long.value.message
        with pytest.raises(BadRequestError) as hot:
            client.chat.completions.create(**(body | {"temperature": 3}))
        assert hot.value.param == "temperature"
        client.chat.completions.create(**body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_stream_end_and_the_exit_code_is_0(
    number: signal.Signals, target: Target, tensorfold_command: list[str], tmp_path: Path
) -> None:
    with (
        serving(tensorfold_command, *target.arguments, folder=tmp_path) as process,
        process.client() as client,
    ):
        body = {
            **asked(1, process),
            "max_tokens": target.second,
            "extra_body": {"ignore_eos": True},
        }
        stream = client.chat.completions.create(**body, stream=True)
        next(stream)
        process.stop(number)
        rest = list(stream)
        assert rest[-1].choices[0].finish_reason == "length"
        assert process.exit_code() == 0, process.text()
        assert "Traceback" not in process.text()


def test_what_is_over_the_drain_time_ends_with_an_error_and_exit_code_0(
    target: Target, tensorfold_command: list[str], tmp_path: Path
) -> None:
    with (
        serving(
            tensorfold_command, *target.arguments, "--shutdown-timeout", "0", folder=tmp_path
        ) as process,
        process.client() as client,
    ):
        body = {**asked(1, process), "max_tokens": target.long, "extra_body": {"ignore_eos": True}}
        stream = client.chat.completions.create(**body, stream=True)
        next(stream)
        process.stop()
        with pytest.raises(APIError, match="shutting down"):
            list(stream)
        assert process.exit_code() == 0, process.text()


def test_a_taken_port_is_one_sentence_and_exit_code_2(
    process: Process, served: Target, tensorfold_command: list[str], tmp_path: Path
) -> None:
    port = process.address.rsplit(":", 1)[1]
    done = subprocess.run(
        [*tensorfold_command, "serve", *served.arguments, "--port", port],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
