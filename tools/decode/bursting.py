"""Bursts over HTTP at a bench's engine: what the fills do to first tokens and to the rate.

The engine is served in this process, one set of fills after another; the clients are a process of
their own: `python -m tensorfold.tools.decode.bursting ADDRESS MODEL`, which prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.family_api import ChatFormat
from tensorfold.core.fill_settings import fill_fields
from tensorfold.core.server.app import serving
from tensorfold.core.settings import Settings, read
from tensorfold.core.text import load_text
from tensorfold.tools.bench_bursts import ARMS

STREAMS, ROWS, TOKENS, REPS = 8, 60, 48, 5
SHOWN = ("unset", "many", "drain", "pack")
KINDS = ("equal", "different")
# Ids that a small tokenizer knows.
LEAST, MOST = 300, 3000


@dataclass(frozen=True, kw_only=True, slots=True)
class Burst:
    """Seconds and tokens a second: medians of bursts of one kind."""

    slowest_first: float
    aggregate: float
    steady: float
    hashes: tuple[str, ...]


def served(engine: TorchEngine, tokenizer: Path) -> dict[str, dict[str, Burst]]:
    """Bursts by arm and kind."""
    return {arm: asyncio.run(of_arm(engine, tokenizer, ARMS[arm])) for arm in SHOWN}


async def of_arm(engine: TorchEngine, tokenizer: Path, flags: Sequence[str]) -> dict[str, Burst]:
    settings = settings_of(flags)
    info = engine.info
    engine.info = replace(
        info,
        **fill_fields(
            settings,
            context=info.context,
            chunk_rows=info.chunk_rows,
            passes=info.passes,
            pack_rows=info.pack_rows,
        ),
    )
    text = load_text(tokenizer, ChatFormat(template=""), info.vocab_size, ())
    try:
        async with serving(engine=engine, text=text, settings=settings, model="bench") as here:
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tensorfold.tools.decode.bursting",
                here.address,
                "bench",
                stdout=asyncio.subprocess.PIPE,
            )
            said, _ = await child.communicate()
            assert child.returncode == 0, child.returncode
    finally:
        engine.info = info
    found = json.loads(said)
    return {kind: Burst(**(one | {"hashes": tuple(one["hashes"])})) for kind, one in found.items()}


def settings_of(flags: Sequence[str]) -> Settings:
    """The settings of an arm's flags."""
    given: dict[str, Any] = {"port": "0", "log": "warning"}
    words = iter(flags)
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        given[name] = True if name == "fill_many" else next(words)
    return read(given, {})


# -- the clients' process ----------------------------------------------------------------------


def prompts_of(kind: str) -> list[list[int]]:
    apart = 0 if kind == "equal" else 131
    return [
        [LEAST + (97 * row + apart * stream) % (MOST - LEAST) for row in range(ROWS)]
        for stream in range(STREAMS)
    ]


async def bursts(address: str, model: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(address, connector=connector) as session:
        for kind in KINDS:
            each = [await burst(session, model, prompts_of(kind)) for _ in range(1 + REPS)]
            # The first one warms up.
            found[kind] = summed(each[1:])
    return found


async def burst(
    session: aiohttp.ClientSession, model: str, prompts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """All prompts at once: the seconds of every event since, by reply, and the receipts' hashes."""
    go = asyncio.Event()
    asked = [asyncio.create_task(reply(session, model, prompt, go)) for prompt in prompts]
    await asyncio.sleep(0)
    began = time.monotonic()
    go.set()
    replies = await asyncio.gather(*asked)
    return {
        "times": [[at - began for at in times] for times, _ in replies],
        "hashes": [sha256 for _, sha256 in replies],
    }


async def reply(
    session: aiohttp.ClientSession, model: str, prompt: Sequence[int], go: asyncio.Event
) -> tuple[list[float], str]:
    body = {"model": model, "prompt": list(prompt), "max_tokens": TOKENS, "temperature": 0}
    body |= {"stream": True, "ignore_eos": True, "return_token_ids": True}
    await go.wait()
    times: list[float] = []
    sha256 = ""
    async with session.post("/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            assert "error" not in event, event
            sha256 = event.get("tensorfold", {}).get("token_sha256", sha256)
            tokens = sum(len(choice.get("token_ids") or ()) for choice in event["choices"])
            times += [time.monotonic()] * tokens
    assert len(times) == TOKENS, (len(times), TOKENS)
    assert sha256
    return times, sha256


def summed(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over bursts. Steady is the rate while every reply has begun and none has ended."""
    firsts, aggregates, steadies = [], [], []
    for one in each:
        times = one["times"]
        first, last = min(t[0] for t in times), max(t[-1] for t in times)
        firsts.append(max(t[0] for t in times))
        aggregates.append(sum(len(t) - 1 for t in times) / (last - first))
        begun, ended = firsts[-1], min(t[-1] for t in times)
        inside = sum(begun < at <= ended for t in times for at in t)
        steadies.append(inside / (ended - begun))
    assert all(one["hashes"] == each[0]["hashes"] for one in each)
    return {
        "slowest_first": statistics.median(firsts),
        "aggregate": statistics.median(aggregates),
        "steady": statistics.median(steadies),
        "hashes": each[0]["hashes"],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(bursts(sys.argv[1], sys.argv[2]))))
