"""`tensorfold selfcheck BASE|DIR`: does a served model keep the promises, seen from its clients?

BASE is the address of a running server. DIR, a checkpoint's folder or a bundled model's name, has
servers of its own started one after another, with any flag of `tensorfold serve`, and adds prompts
whole against prompts in pieces. Replies are compared token by token and log-probability by
log-probability. Prints which promises hold and which were not tested; exits with 1 if one is broken
or a run that it needs failed, or if none was tested.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, TypeVar

import aiohttp

from tensorfold.core.errors import StartError
from tensorfold.core.settings import add_flags, switches
from tensorfold.tools.arguments import Parser, at_least, seconds
from tensorfold.tools.asking import Answer, Ask, NoReply, Server, connect
from tensorfold.tools.bench_bursts import COMMAND, serving

SUBJECTS = ("rain", "bread", "a lighthouse", "moss", "two foxes", "the sea", "copper", "an owl")
LINES = (
    "The wind came up from the river and turned the pages of the book. ",
    "She counted seven stones, put one back, and counted them again. ",
    "def area(width, height):\n    return width * height\n",
    "Nobody in the village remembered who had built the bridge. ",
)
# Most differences told of one promise.
TOLD = 5
# Rows of a piece at least, if the grid allows: an odd number, and not a forward for every row.
PIECE = 17
# Times that requests sent at once may miss one another.
TRIES = 5
# Promises that one server shows, told as each was looked at.
AT_ONE = ("concurrent = solo", "drafted = undrafted", "resumed = fresh")
Reply = TypeVar("Reply")


@dataclass(kw_only=True, slots=True)
class Promise:
    """`compared` replies were equal; `broken` and `failed` say in words what was not, or not
    there; `untested` why nothing was compared."""

    name: str
    compared: int = 0
    of: str = ""
    broken: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    untested: str = "it was not looked at"

    @property
    def state(self) -> str:
        if self.broken:
            return "BROKEN"
        if self.failed:
            return "FAILED"
        return "holds" if self.compared else "not tested"

    def compare(self, what: str, wanted: Answer, found: Answer) -> None:
        difference = wanted.differs(found)
        if difference is None:
            self.compared += 1
        else:
            self.broken.append(f"{what}: {difference}")

    def lines(self) -> list[str]:
        words = {
            "holds": f"{self.compared} replies equal{self.of}",
            "not tested": self.untested,
            "FAILED": f"a run that it needs has no reply; {self.compared} replies equal",
            "BROKEN": f"{len(self.broken)} replies differ, {self.compared} are equal",
        }
        told = [*self.broken[:TOLD], *self.failed[:TOLD]]
        head = f"{self.state:<10}  {self.name:<20}  {words[self.state]}"
        return [head, *(f"{'':<34}{line}" for line in told)]

    def show(self) -> None:
        print("\n".join(self.lines()), flush=True)


def promises() -> dict[str, Promise]:
    untested = {
        "concurrent = solo": "the server has one lane",
        "drafted = undrafted": "no token was drafted: start the server with --drafts",
        "resumed = fresh": "no reply began from a kept state",
        "split = whole": "needs servers of its own: give it a folder or a bundled model's name",
        "after = before": "cancels, rollbacks and faults are not made from outside",
        "ranks = one": "the server has one rank",
    }
    return {name: Promise(name=name, untested=why) for name, why in untested.items()}


# -- asking ------------------------------------------------------------------------------------


def asks_of(info: Mapping[str, Any], tokens: int) -> list[Ask]:
    """As many different asks as lanes, at least two: short and long prompts, greedy and sampled,
    ending at different times."""
    room = info["context"] - tokens
    if room < 1:
        raise StartError(f"--tokens is {tokens}, and the context holds {info['context']}")
    piece = piece_rows(info)
    long = [60, 3 * piece, 6 * piece, 4 * info.get("chunk_rows", 0)]
    found = []
    for number in range(max(2, info["lanes"])):
        subject = SUBJECTS[number % len(SUBJECTS)]
        text = f"{number}. A story of {subject}. "
        text += LINES[number % len(LINES)] * (1 + long[number % len(long)] // 40)
        found.append(
            Ask(
                # A token is a byte at least, so this always fits.
                prompt=text[:room],
                tokens=tokens - number % 3 * (tokens // 4),
                temperature=(0.0, 0.8, 1.0)[number % 3],
                seed=number,
            )
        )
    return found


@dataclass(kw_only=True, slots=True)
class Solo:
    """What each ask gave alone; a place is none where it failed."""

    asks: Sequence[Ask]
    answers: list[Answer | None] = field(default_factory=list)


async def attempt(promise: Promise, what: str, asked: Awaitable[Reply]) -> Reply | None:
    """What `asked` gives, or none with its failure kept."""
    try:
        return await asked
    except NoReply as error:
        promise.failed.append(f"{what}: {error}")
        return None


async def alone(server: Server, asks: Sequence[Ask], promise: Promise) -> Solo:
    solo = Solo(asks=asks)
    for number, ask in enumerate(asks):
        solo.answers.append(await attempt(promise, f"ask {number} alone", server.ask(ask)))
    return solo


async def in_company(server: Server, solo: Solo, promise: Promise) -> None:
    """Every concurrency from 1 to the lanes, each ask in changing company.

    A concurrency counts only if rounds were shared: the replies' own rounds add up to more than
    the server ran.
    """
    lanes, apart = server.info["lanes"], []
    for level in range(1, lanes + 1):
        chosen = [(level + place) % len(solo.asks) for place in range(level)]
        for _ in range(TRIES):
            before = await server.rounds()
            together = server.together([solo.asks[number] for number in chosen])
            found = await attempt(promise, f"{level} at once", together)
            if found is None:
                break
            after = await server.rounds()
            if before is None or after is None:
                promise.failed.append("the server does not tell how many rounds it ran")
                return
            if level == 1 or sum(answer.rounds for answer in found) > after - before:
                for number, answer in zip(chosen, found, strict=True):
                    if (wanted := solo.answers[number]) is not None:
                        promise.compare(f"ask {number} among {level}", wanted, answer)
                break
        else:
            apart.append(level)
    promise.of = f", at 1 to {lanes} streams"
    if apart:
        levels = ", ".join(map(str, apart))
        promise.failed.append(f"no round was shared at {levels} at once: try more --tokens")
    if lanes == 1 and not promise.broken and not promise.failed:
        promise.compared = 0


async def undrafted(server: Server, solo: Solo, promise: Promise) -> None:
    drafted = sum(answer.drafted for answer in solo.answers if answer is not None)
    if not drafted:
        return
    for number, (ask, wanted) in enumerate(zip(solo.asks, solo.answers, strict=True)):
        what = f"ask {number} without drafts"
        found = await attempt(promise, what, server.ask(ask, draft=False))
        if found is None or wanted is None:
            continue
        if found.drafted:
            promise.failed.append(f"{what}: {found.drafted} tokens were drafted")
            continue
        promise.compare(what, wanted, found)
    accepted = sum(answer.accepted for answer in solo.answers if answer is not None)
    promise.of = f", {accepted} of {drafted} drafts accepted"


async def repeated(server: Server, tokens: int, promise: Promise) -> None:
    """One prompt that no server has seen, three times: cold, and then as the server likes."""
    room = server.info["context"] - tokens
    text = f"{secrets.token_hex(8)}. " + LINES[0] * (1 + 6 * server.info["grid"] // 40)
    ask = Ask(prompt=text[:room], tokens=tokens, temperature=0.8, seed=5)
    found = [
        await attempt(promise, f"the new prompt, time {time}", server.ask(ask))
        for time in (1, 2, 3)
    ]
    first = found[0]
    if first is None:
        return
    if first.cached:
        promise.failed.append(f"a prompt never asked before had {first.cached} rows cached")
        return
    warm = [answer for answer in found[1:] if answer is not None and answer.cached]
    for time, answer in enumerate(found[1:], start=2):
        if answer is not None and (difference := first.differs(answer)):
            kind = "warm" if answer.cached else "cold"
            promise.broken.append(f"the new prompt, time {time} ({kind}): {difference}")
        elif answer is not None and answer.cached:
            promise.compared += 1
    if not warm and not promise.broken and not promise.failed:
        promise.untested += "; three times cold gave equal replies"


def piece_rows(info: Mapping[str, Any]) -> int:
    """Rows of a piece: a multiple of the grid."""
    grid: int = info["grid"]
    return grid * max(1, PIECE // grid)


async def in_pieces(server: Server, solo: Solo, promise: Promise) -> None:
    """The same asks where a step is one chunk of a piece: alone, and all at once."""
    piece = piece_rows(server.info)
    if server.info.get("fill_chunks") != 1 or server.info.get("chunk_rows") != piece:
        promise.failed.append(f"the second server did not take pieces of {piece} rows")
        return
    numbers = range(len(solo.asks))
    found: list[tuple[str, int, Answer | None]] = []
    for number in numbers:
        what = f"ask {number} in pieces"
        answer = await attempt(promise, what, server.ask(solo.asks[number]))
        found.append((what, number, answer))
    burst = [number for number in numbers if number < server.info["lanes"]]
    together = await attempt(
        promise,
        f"{len(burst)} at once in pieces",
        server.together([solo.asks[number] for number in burst]),
    )
    for number, answer in zip(burst, together or (), strict=bool(together)):
        found.append((f"ask {number} in pieces among {len(burst)}", number, answer))
    for what, number, answer in found:
        wanted = solo.answers[number]
        if wanted is not None and answer is not None and wanted.rows > piece:
            promise.compare(what, wanted, answer)
    promise.of = f", in pieces of {piece} rows against whole"
    if not promise.compared and not promise.broken and not promise.failed:
        promise.untested = f"no prompt is longer than a piece of {piece} rows"


# -- running -----------------------------------------------------------------------------------


async def check_running(base: str, tokens: int, timeout: float) -> list[Promise]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        server = await connect(session, base, timeout)
        found = promises()
        await check_one(server, found, tokens)
        return list(found.values())


async def check_one(server: Server, found: Mapping[str, Promise], tokens: int) -> Solo:
    print(described(server.info), flush=True)
    solo = await alone(server, asks_of(server.info, tokens), found["concurrent = solo"])
    company, drafted, resumed = (found[name] for name in AT_ONE)
    await in_company(server, solo, company)
    company.show()
    await undrafted(server, solo, drafted)
    drafted.show()
    await repeated(server, tokens, resumed)
    resumed.show()
    if server.info["ranks"] > 1:
        found["ranks = one"].untested = "needs the same model on one rank beside it"
    return solo


async def check_folder(
    model: str,
    flags: Sequence[str],
    tokens: int,
    timeout: float,
    command: Sequence[str] = COMMAND,
) -> list[Promise]:
    """Whole prompts at first, then the same in pieces; `command` starts the servers."""
    found = promises()
    split = found["split = whole"]
    split.untested = "the first server gave nothing to compare with"
    with TemporaryDirectory() as folder:

        async def started(stack: AsyncExitStack, *more: str) -> Server:
            began = monotonic()
            served = await stack.enter_async_context(
                serving([*command, "serve", model], [*flags, *more], Path(folder) / "trace.jsonl")
            )
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            await stack.enter_async_context(session)
            words = " ".join(("serve", model, *flags, *more))
            print(f"{words}: started in {monotonic() - began:.0f} s", flush=True)
            return await connect(session, served.address, timeout)

        async with AsyncExitStack() as stack:
            server = await started(stack)
            solo = await check_one(server, found, tokens)
            piece = str(piece_rows(server.info))
        async with AsyncExitStack() as stack:
            server = await started(stack, "--fill-chunks", "1", "--chunk-rows", piece)
            await in_pieces(server, solo, split)
    return list(found.values())


def described(info: Mapping[str, Any]) -> str:
    names = ("backend", "device", "dtype", "lanes", "context", "chunk_rows", "grid", "drafts")
    told = [f"{name} {info[name]}" for name in names if name in info]
    return f"selfcheck of {info['model']}: " + ", ".join(told)


# -- the command -------------------------------------------------------------------------------

OWN = ("fill", "fill_chunks", "fill_many", "fill_rounds", "fill_cut_in", "fill_drain", "fill_pack")


def main(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="tensorfold selfcheck", description=__doc__, argument_default=argparse.SUPPRESS
    )
    parser.add_argument(
        "subject",
        metavar="BASE|DIR|NAME",
        help="a running server's address, a checkpoint's folder or a bundled model's name",
    )
    parser.add_argument("--tokens", type=at_least(4), default=24, help="tokens of a reply [24]")
    parser.add_argument(
        "--timeout", type=seconds, default=600.0, metavar="SECONDS", help="of one reply [600]"
    )
    parser.add_argument("--output", type=Path, help="file for the findings as JSON")
    add_flags(parser)
    given = vars(parser.parse_args(arguments))
    subject, tokens, timeout = given.pop("subject"), given.pop("tokens"), given.pop("timeout")
    output = given.pop("output", None)
    if subject.startswith(("http://", "https://")):
        if given:
            raise StartError(f"--{next(iter(given))} is for a server that selfcheck starts itself")
        found = asyncio.run(check_running(subject, tokens, timeout))
    else:
        found = asyncio.run(check_folder(subject, server_flags(given), tokens, timeout))
    return told(found, output)


def server_flags(given: Mapping[str, Any]) -> list[str]:
    """The flags of `tensorfold serve` again as words. Raises `StartError` for those it sets."""
    flags = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        if name in OWN or name in ("port", "trace", "log"):
            raise StartError(f"--{flag} is set by selfcheck itself")
        if isinstance(switches()[name][1], bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def told(found: Sequence[Promise], output: Path | None) -> int:
    for promise in found:
        if promise.name not in AT_ONE:
            promise.show()
    held = [promise.name for promise in found if promise.state == "holds"]
    bad = [promise.name for promise in found if promise.state in ("BROKEN", "FAILED")]
    rest = [promise.name for promise in found if promise.state == "not tested"]
    print(
        f"SUMMARY selfcheck: {len(held)} promises hold, {len(bad)} do not, "
        f"{len(rest)} were not tested"
    )
    sys.stdout.flush()
    if output is not None:
        records = [asdict(promise) | {"state": promise.state} for promise in found]
        output.write_text(json.dumps(records, indent=2) + "\n")
    return 0 if held and not bad else 1
