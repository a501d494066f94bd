"""Bursts at real servers: what the fills do to first tokens, and that they change no token.

    python -m tensorfold.tools.bench_bursts [MODEL] [--runs 5] [--plot DIR] [--output FILE.json]

One server an arm, the bundled model by default. Each run lets a burst of short prompts, equal ones
and then different ones, go at every arm in turn, so that all arms meet the same machine; a run's
figure is the median of `--reps` such bursts. Times are of the clients; `--plot` draws the last
burst's lanes from the servers' own traces. Exits with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from rich.console import Console

from tensorfold.core.errors import StartError
from tensorfold.tools.arguments import Parser, at_least, exit_code, positive
from tensorfold.tools.own_command import own_command
from tensorfold.tools.sim.report import Check, Outcome, Panel, Table, document, show

CHUNKS = ("--fill-chunks", "1", "--fill-many")
DRAIN = (*CHUNKS, "--fill-drain", "4096")
ARMS: Mapping[str, tuple[str, ...]] = {
    "unset": (),
    "many": CHUNKS,
    "drain": DRAIN,
    "pack": (*DRAIN, "--fill-pack", "512"),
    "smooth": ("--fill", "smooth"),
}
COMMAND = own_command("tensorfold.tools.cli")
STREAMS = 8
SUBJECTS = ("rain", "bread", "a lighthouse", "moss", "two foxes", "the sea", "copper", "an owl")
PROMPTS: Mapping[str, tuple[str, ...]] = {
    "equal": ("A short story of rain:",) * STREAMS,
    "different": tuple(f"A short story of {subject}:" for subject in SUBJECTS),
}
ADDRESS = re.compile(r"http://\S+:\d+")
# Before a burst and after it in a picture, in seconds.
MARGIN = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    address: str
    model: str
    trace: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """Seconds on the machine's clock, and the receipt's hash."""

    first: float
    last: float
    tokens: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Burst:
    began: float
    replies: tuple[Reply, ...]

    @property
    def slowest_first(self) -> float:
        return max(reply.first for reply in self.replies) - self.began

    @property
    def aggregate(self) -> float:
        """Tokens a second after the first ones, over all streams together."""
        first = min(reply.first for reply in self.replies)
        last = max(reply.last for reply in self.replies)
        return sum(reply.tokens - 1 for reply in self.replies) / (last - first)

    @property
    def hashes(self) -> tuple[str, ...]:
        return tuple(reply.sha256 for reply in self.replies)


@dataclass(kw_only=True, slots=True)
class Measured:
    """`bursts` by kind and arm, `reps` a run; `panels` by kind."""

    reps: int
    bursts: dict[tuple[str, str], list[Burst]] = field(default_factory=dict)
    panels: dict[str, list[Panel]] = field(default_factory=dict)

    def of(self, kind: str, arm: str) -> list[Burst]:
        return self.bursts.setdefault((kind, arm), [])

    def firsts(self, kind: str, arm: str) -> list[float]:
        """The slowest first token of each run, in seconds."""
        each = [burst.slowest_first for burst in self.of(kind, arm)]
        return [
            statistics.median(each[place : place + self.reps])
            for place in range(0, len(each), self.reps)
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code("bench_bursts", lambda: run(parse(arguments)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="bench_bursts", description=__doc__)
    parser.add_argument("model", nargs="?", default="", help="as `tensorfold serve` takes it")
    parser.add_argument("--runs", type=positive, default=5, help="how often every arm is run")
    parser.add_argument("--reps", type=positive, default=3, help="bursts of each arm in a run")
    parser.add_argument("--tokens", type=at_least(2), default=24, help="tokens of each reply")
    parser.add_argument("--plot", type=Path, help="folder for a picture of each kind of burst")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    measured = asyncio.run(measure(options))
    outcome = judged(measured, options)
    show(outcome, Console() if sys.stdout.isatty() else Console(width=120))
    if options.output is not None:
        options.output.write_text(json.dumps(document(outcome), indent=2) + "\n")
    if options.plot is not None:
        from tensorfold.tools.sim.drawing import save

        for kind, panels in measured.panels.items():
            save(panels, options.plot / f"burst-{kind}.png")
    return 0 if outcome.holds else 1


# -- measuring ---------------------------------------------------------------------------------


async def measure(options: argparse.Namespace, command: Sequence[str] = COMMAND) -> Measured:
    """Every arm's bursts, from servers that are all there throughout; `command` starts them."""
    measured = Measured(reps=options.reps)
    model = [options.model] if options.model else []
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            servers = {
                arm: await stack.enter_async_context(
                    serving([*command, "serve", *model], flags, Path(folder) / f"{arm}.jsonl")
                )
                for arm, flags in ARMS.items()
            }
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            )
            for server in servers.values():
                await burst(session, server, PROMPTS["equal"][:2], 2)
            for _ in range(options.runs):
                for kind, prompts in PROMPTS.items():
                    for arm in list(ARMS) * options.reps:
                        found = await burst(session, servers[arm], prompts, options.tokens)
                        measured.of(kind, arm).append(found)
        for kind in PROMPTS:
            measured.panels[kind] = [
                panel(arm, server.trace, measured.of(kind, arm)[-1])
                for arm, server in servers.items()
            ]
    return measured


@asynccontextmanager
async def serving(
    command: Sequence[str], flags: Sequence[str], trace: Path
) -> AsyncIterator[Server]:
    """A server in a process of its own. Raises `StartError` with its words if it does not start."""
    arguments = ("--port", "0", "--log", "warning", "--trace", str(trace), *flags)
    child = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        # The arms differ by their flags alone.
        env={name: value for name, value in os.environ.items() if not name.startswith("TF_")},
    )
    assert child.stderr is not None
    try:
        words = ""
        while not (found := ADDRESS.search(words)):
            line = await child.stderr.readline()
            if not line:
                raise StartError(f"the server did not start: {words.strip()}")
            words += line.decode()
        drained = asyncio.create_task(child.stderr.read())
        async with (
            aiohttp.ClientSession(found.group()) as session,
            session.get("/v1/models") as response,
        ):
            name = (await response.json())["data"][0]["id"]
        yield Server(address=found.group(), model=name, trace=trace)
        child.terminate()
        await drained
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
        # One that has closed its words may not have ended yet.
        await child.wait()


async def burst(
    session: aiohttp.ClientSession, server: Server, prompts: Sequence[str], tokens: int
) -> Burst:
    """All prompts at once."""
    go = asyncio.Event()
    asked = [asyncio.create_task(reply(session, server, prompt, tokens, go)) for prompt in prompts]
    await asyncio.sleep(0)
    began = time.monotonic()
    go.set()
    return Burst(began=began, replies=tuple(await asyncio.gather(*asked)))


async def reply(
    session: aiohttp.ClientSession, server: Server, prompt: str, tokens: int, go: asyncio.Event
) -> Reply:
    body = {"model": server.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    body |= {"stream": True, "ignore_eos": True, "return_token_ids": True}
    await go.wait()
    times: list[float] = []
    receipt: dict[str, Any] = {}
    async with session.post(f"{server.address}/v1/completions", json=body) as response:
        if response.status != 200:
            raise StartError(f"the server answered {response.status}: {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise StartError(f"a reply failed: {event['error']['message']}")
            receipt = event.get("tensorfold", receipt)
            if any(choice.get("token_ids") or choice["text"] for choice in event["choices"]):
                times.append(time.monotonic())
    if not times or "token_sha256" not in receipt:
        raise StartError("a stream ended without its tokens or without its receipt")
    return Reply(first=times[0], last=times[-1], tokens=tokens, sha256=receipt["token_sha256"])


def panel(arm: str, trace: Path, shown: Burst) -> Panel:
    """A burst's turns by the server's trace: both clocks are the machine's."""
    from tensorfold.tools.sim.timeline import read_trace

    until = max(reply.last for reply in shown.replies) + MARGIN
    turns = [turn for turn in read_trace(trace) if shown.began - MARGIN < turn.ended < until]
    return Panel(title=f"{arm}: {' '.join(ARMS[arm]) or 'no fill set'}", turns=tuple(turns))


# -- judging -----------------------------------------------------------------------------------


def judged(measured: Measured, options: argparse.Namespace) -> Outcome:
    checks = []
    for kind in PROMPTS:
        hashes = {burst.hashes for arm in ARMS for burst in measured.of(kind, arm)}
        checks.append(
            Check(
                name=f"{kind} prompts: every arm and run gives the same tokens",
                holds=len(hashes) == 1,
                found=f"{len(hashes)} sets of {STREAMS} hashes over {len(ARMS)} arms",
            )
        )
        late = measured.firsts(kind, "many")
        for arm in ("unset", "drain"):
            early = measured.firsts(kind, arm)
            below = sum(a < b for a, b in zip(early, late, strict=True))
            checks.append(
                Check(
                    name=f"{kind} prompts: {arm}'s slowest first token comes before many's",
                    holds=below == options.runs,
                    found=f"in {below} of {options.runs} runs",
                )
            )
    return Outcome(
        scenario="bursts",
        tables=tuple(table(kind, measured, options) for kind in PROMPTS),
        checks=tuple(checks),
        document={
            "runs": options.runs,
            "reps": options.reps,
            "tokens": options.tokens,
            "arms": figures(measured),
        },
    )


def figures(measured: Measured) -> dict[str, dict[str, Any]]:
    return {
        kind: {
            arm: {
                "slowest_first": measured.firsts(kind, arm),
                "aggregate": [burst.aggregate for burst in measured.of(kind, arm)],
                "hashes": measured.of(kind, arm)[0].hashes,
            }
            for arm in ARMS
        }
        for kind in PROMPTS
    }


def table(kind: str, measured: Measured, options: argparse.Namespace) -> Table:
    rows = []
    for arm in ARMS:
        bursts = measured.of(kind, arm)
        firsts = measured.firsts(kind, arm)
        rates = [burst.aggregate for burst in bursts]
        spread = f"{min(firsts):.3f} to {max(firsts):.3f}"
        rows.append((arm, statistics.median(firsts), spread, statistics.median(rates)))
    return Table(
        title=f"{STREAMS} {kind} prompts, {options.tokens} tokens each, "
        f"{options.runs} runs of {options.reps}",
        columns=("arm", "slowest first token, s", "from to", "aggregate, tok/s"),
        rows=tuple(rows),
    )


if __name__ == "__main__":
    sys.exit(main())
