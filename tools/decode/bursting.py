"""Bursts over HTTP at a bench's engine: what the fills do to first tokens and to the rate.

The engine is served in this process under every set of fills at once, and bursts go at one server
after another, there and back, so that all meet the same machine; the clients are one process of
their own, which is told a server and a kind of burst a line and answers with a line of JSON. After
a few turns all servers are opened anew: a server's threads may have a slower core than another's
for as long as they live.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Engine, Info, Opening, Piece
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import ChatFormat
from tensorfold.core.fill_settings import fill_fields
from tensorfold.core.server.app import serving
from tensorfold.core.settings import Settings, add_flags, read
from tensorfold.core.text import Text, load_text
from tensorfold.tools.arguments import Parser
from tensorfold.tools.bench_bursts import ARMS
from tensorfold.tools.own_command import own_command

# Prompts are shorter than a grid block: nothing of an equal one is kept for the next.
STREAMS, ROWS, TOKENS = 8, 60, 32
# Turns that servers live, and those before any of them is counted, in which comes what comes once.
LIVED, WARM = 4, 1
# Whose bursts of each kind a turn has, in order; every other turn goes back. The two that are to be
# level have more, and stand behind one another alike.
TURN = ("many", "unset", "drain", "drain", "unset", "unset", "drain", "pack")
SHOWN = ("unset", "many", "drain", "pack")
KINDS = ("equal", "different")
MODEL = "bench"
# Ids that a small tokenizer knows.
LEAST, MOST = 300, 3000


@dataclass(frozen=True, kw_only=True, slots=True)
class Bursts:
    """Bursts of one kind, in seconds and tokens a second: when the slowest first token came, the
    rate from the first token to the last, and the rate while every reply has begun and none has
    ended."""

    firsts: tuple[float, ...]
    aggregates: tuple[float, ...]
    steadies: tuple[float, ...]
    hashes: tuple[str, ...]

    @property
    def slowest_first(self) -> float:
        return statistics.median(self.firsts)

    @property
    def aggregate(self) -> float:
        return statistics.median(self.aggregates)

    @property
    def steady(self) -> float:
        return statistics.median(self.steadies)


def beside(one: Bursts, other: Bursts) -> float:
    """How far one's aggregate is from the other's: the median over turns, which had as many bursts
    of both and between whose ends a machine changes little."""
    each = TURN.count("unset")
    turns = [
        sum(1 / rate for rate in other.aggregates[at : at + each])
        / sum(1 / rate for rate in one.aggregates[at : at + each])
        for at in range(0, len(other.aggregates), each)
    ]
    return statistics.median(turns) - 1


class Lent:
    """An engine under the fills of `info`, which outlives its server and is not held by it."""

    def __init__(self, engine: Engine, info: Info) -> None:
        self.info = info
        self.open, self.fill, self.round = engine.open, engine.fill, engine.round
        self.drop, self.close, self.memory = engine.drop, engine.close, engine.memory

    def shutdown(self) -> None:
        # What serves keeps its last applications for good, and what hangs on them.
        vars(self).clear()


def served(engine: TorchEngine, tokenizer: Path, turns: int) -> dict[str, dict[str, Bursts]]:
    """The bursts of so many turns, by arm and kind."""
    return asyncio.run(of_arms(engine, tokenizer, turns))


async def of_arms(engine: TorchEngine, tokenizer: Path, turns: int) -> dict[str, dict[str, Bursts]]:
    """Raises `StartError` where the clients ended."""
    text = load_text(tokenizer, ChatFormat(template=""), engine.info.vocab_size, ())
    meet_packs(engine)
    found: dict[str, dict[str, list[Any]]] = {arm: {kind: [] for kind in KINDS} for arm in SHOWN}
    async with clients() as child:
        for begun in range(0, turns, LIVED):
            async with AsyncExitStack() as stack:
                addresses = {
                    arm: await stack.enter_async_context(under(engine, text, ARMS[arm]))
                    for arm in SHOWN
                }
                for turn in range(-WARM, min(LIVED, turns - begun)):
                    for arm in TURN if turn % 2 else reversed(TURN):
                        for kind in KINDS:
                            one = await asked(child, f"{addresses[arm]} {kind}")
                            if turn >= 0:
                                found[arm][kind].append(one)
    return {
        arm: {kind: summed(each) for kind, each in by_kind.items()}
        for arm, by_kind in found.items()
    }


def meet_packs(engine: TorchEngine) -> None:
    """Run packs of as many prompts as a burst may put into one, as often as makes a size known:
    which of them a burst comes to is chance."""
    for count in (*range(1, STREAMS + 1),) * 2:
        pieces = []
        for stream in range(count):
            prompt = tuple(prompts_of(KINDS[-1])[stream])
            engine.open(Opening(stream=stream, prompt=prompt, most=TOKENS))
            pieces.append(Piece(stream=stream, start=0, end=ROWS))
        engine.fill(pieces).land()
        for stream in range(count):
            engine.close(stream)


@asynccontextmanager
async def clients() -> AsyncIterator[Process]:
    command = own_command("tensorfold.tools.decode.bursting")
    # A line holds the times of every token of a burst.
    child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 24)
    try:
        yield child
        assert child.stdin is not None
        child.stdin.close()
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@asynccontextmanager
async def under(engine: TorchEngine, text: Text, flags: Sequence[str]) -> AsyncIterator[str]:
    """The address of a server of the engine with these flags."""
    settings = settings_of(flags)
    info = engine.info
    fills = fill_fields(
        settings,
        context=info.context,
        chunk_rows=info.chunk_rows,
        passes=info.passes,
        pack_rows=info.pack_rows,
    )
    lent = Lent(engine, replace(info, **fills))
    async with serving(engine=lent, text=text, settings=settings, model=MODEL) as here:
        yield here.address


async def asked(child: Process, line: str) -> dict[str, Any]:
    """What the clients say of the burst that they are told of."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{line}\n".encode())
    said = await child.stdout.readline()
    if not said:
        raise StartError(f"the clients ended with status {await child.wait()}")
    found: dict[str, Any] = json.loads(said)
    return found


def settings_of(flags: Sequence[str]) -> Settings:
    """The settings of an arm's flags."""
    parser = Parser()
    add_flags(parser)
    return read(vars(parser.parse_args(["--port", "0", "--log", "warning", *flags])), {})


# -- the clients' process ----------------------------------------------------------------------


def prompts_of(kind: str) -> list[list[int]]:
    apart = 0 if kind == "equal" else 131
    return [
        [LEAST + (97 * row + apart * stream) % (MOST - LEAST) for row in range(ROWS)]
        for stream in range(STREAMS)
    ]


async def bursts() -> None:
    """A burst for each line, over connections that are kept."""
    sessions: dict[str, aiohttp.ClientSession] = {}
    async with AsyncExitStack() as stack:
        while line := await asyncio.to_thread(sys.stdin.readline):
            address, kind = line.split()
            if address not in sessions:
                connector = aiohttp.TCPConnector(limit=0)
                sessions[address] = await stack.enter_async_context(
                    aiohttp.ClientSession(address, connector=connector)
                )
            print(json.dumps(await burst(sessions[address], MODEL, prompts_of(kind))), flush=True)


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


def summed(each: Sequence[Mapping[str, Any]]) -> Bursts:
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
    return Bursts(
        firsts=tuple(firsts),
        aggregates=tuple(aggregates),
        steadies=tuple(steadies),
        hashes=tuple(each[0]["hashes"]),
    )


if __name__ == "__main__":
    asyncio.run(bursts())
