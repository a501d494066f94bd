"""Drafts over real sockets: a request with `"draft": false` has the receipt of one without it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.served.processes import serving

ASKED = (
    ("Tell me a story about a fox.", 0.0),
    ("What is the opposite of hot?", 0.0),
    ("Write a JSON object with name Ada and age 7.", 1.0),
    ("Hello, who are you?", 1.0),
)


async def receipts(client: AsyncOpenAI, model: str, draft: bool) -> list[dict[str, Any]]:
    async def one(question: str, temperature: float) -> dict[str, Any]:
        reply = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=temperature,
            seed=11,
            max_tokens=40,
            logprobs=True,
            top_logprobs=3,
            extra_body={"draft": draft},
        )
        found: dict[str, Any] = reply.model_extra["tensorfold"] if reply.model_extra else {}
        chosen = reply.choices[0]
        assert chosen.logprobs is not None
        return {**found, "logprobs": chosen.logprobs.model_dump(), "text": chosen.message.content}

    return list(await asyncio.gather(*(one(*asked) for asked in ASKED)))


@pytest.mark.parametrize(("model", "drafts"), [("tiny-glm53", "2"), ("tiny-dsv41", "5")])
def test_drafts_change_rounds_and_no_byte_of_a_reply(
    model: str, drafts: str, tensorfold_command: list[str], tmp_path: Path
) -> None:
    async def both(address: str, model: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            return await receipts(client, model, True), await receipts(client, model, False)

    with serving(tensorfold_command, model, "--drafts", drafts, folder=tmp_path) as process:
        with_drafts, without = asyncio.run(both(process.address, process.model))
    same = ("token_sha256", "prompt_sha256", "engine", "seed", "logprobs", "text")
    for mine, other in zip(with_drafts, without, strict=True):
        assert {name: mine[name] for name in same} == {name: other[name] for name in same}
        assert (other["drafted"], other["accepted"]) == (0, 0)
        assert 0 < mine["accepted"] <= mine["drafted"]
        assert mine["rounds"] < other["rounds"]
