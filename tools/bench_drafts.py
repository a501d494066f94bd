"""Drafts at real servers: what each source of guesses brings, and that none changes a byte.

    python -m tensorfold.tools.bench_drafts [MODEL ...] [--prompts 40] [--output FILE.json]

Every bundled model that has a draft head, unless models are named; four servers each: without
drafts, with the head's, with copies, with both. Held-out prompts (questions, objects, prose) and
chats that ask again what they were answered go to all of them in turn, greedy and at temperature 1,
one at a time and eight at once. Tokens a round leave the first token out, and rates are of the
receipts' decode seconds. Exits with 1 when a reply differs from the undrafted one in a token or a
log-probability.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from rich.console import Console

from tensorfold.core.checkpoint import read_config
from tensorfold.core.errors import StartError
from tensorfold.plugins.manager import Installed, discover
from tensorfold.tools.arguments import Parser, at_least, exit_code, positive
from tensorfold.tools.bench_bursts import COMMAND, Server, serving
from tensorfold.tools.sim.report import Check, Outcome, Table, document, show
from tensorfold.tools.tiny import heldout

HELD_OUT = Path(__file__).resolve().parents[1] / "tests/data/tiny_heldout"
PLAIN = "none"
ARMS: Mapping[str, tuple[str, ...]] = {
    PLAIN: ("--no-drafts", "--no-copies"),
    "head": ("--no-copies",),
    "copies": ("--no-drafts",),
    "both": (),
}
TEMPERATURES = (0.0, 1.0)
STREAMS = (1, 8)
SEED = 20
KINDS = ("held out", "repeating")
REPEATING = 8
PROSE_WORDS = 40
# Tokens of a round at one stream, greedy; a rate on a CPU; and what the same may differ by in time.
LEAST_BY_FAMILY = {"glm53": 1.4, "dsv41": 2.0}
LEAST_COPIES = 2.0
LEAST_RATE = 100.0
NOISE = 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request but for its temperature: where it goes, and what it says."""

    kind: str
    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """`proof` is what must not differ. `sources` has rows and accepted guesses by source."""

    proof: tuple[str, str]
    tokens: int
    rounds: int
    seconds: float
    sources: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is compared between the arms of a model."""

    model: str
    kind: str
    temperature: float
    streams: int


@dataclass(kw_only=True, slots=True)
class Measured:
    """Replies by case and arm, in the order of the prompts, run after run; families by model."""

    replies: dict[tuple[Case, str], list[Reply]] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)

    def of(self, case: Case, arm: str) -> list[Reply]:
        return self.replies.setdefault((case, arm), [])

    def cases(self) -> list[Case]:
        return list(dict.fromkeys(case for case, _ in self.replies))


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code("bench_drafts", lambda: run(parse(arguments)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="bench_drafts", description=__doc__)
    parser.add_argument("models", nargs="*", help="as `tensorfold serve` takes them")
    parser.add_argument("--prompts", type=positive, default=40, help="held-out prompts")
    parser.add_argument("--tokens", type=at_least(2), default=64, help="most tokens of a reply")
    parser.add_argument("--runs", type=positive, default=1, help="how often every prompt is asked")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    installed = discover()
    models = options.models or with_heads(installed)
    if not models:
        raise StartError("no bundled model has a draft head")
    measured = Measured()
    for model in models:
        asyncio.run(measure(model, options, measured))
    outcome = judged(measured)
    show(outcome, Console() if sys.stdout.isatty() else Console(width=140))
    if options.output is not None:
        options.output.write_text(json.dumps(document(outcome), indent=2) + "\n")
    same = [check.holds for check in outcome.checks if check.name.startswith(SAME)]
    return 0 if all(same) else 1


def with_heads(installed: Installed) -> list[str]:
    """Bundled models with a draft head, by name."""
    found = []
    for _, offer in sorted(installed.families.items()):
        family = offer.value
        for name, folder in family.bundled().items():
            if family.drafts(family.config(read_config(folder))):
                found.append(name)
    return found


# -- prompts -----------------------------------------------------------------------------------


def prompts(count: int, tokens: int) -> list[Ask]:
    """Held-out prompts of all kinds in turn, and some that ask again what they were answered."""
    draw = random.Random(SEED)
    sets = heldout.read(HELD_OUT)
    chats = [draw.sample(sets[name], len(sets[name])) for name in ("questions", "objects")]
    asks = []
    for number in range(count):
        turn, place = number % 3, number // 3
        if turn < 2:
            asks.append(chat(chats[turn][place % len(chats[turn])]["messages"], tokens))
        else:
            asks.append(completion(stretch(draw, sets["prose"], PROSE_WORDS), tokens))
    for row in draw.sample(sets["objects"], REPEATING):
        said = {"role": "assistant", "content": json.dumps(row["object"])}
        asks.append(chat([*row["messages"], said, *row["messages"]], tokens, KINDS[1]))
    return asks


def stretch(draw: random.Random, prose: Sequence[Mapping[str, Any]], words: int) -> str:
    """So many words in a row of one of the works."""
    text = draw.choice(prose)["text"].split()
    start = draw.randrange(len(text) - words)
    return " ".join(text[start : start + words])


def chat(messages: Sequence[Mapping[str, Any]], tokens: int, kind: str = KINDS[0]) -> Ask:
    body = {"messages": messages, "max_tokens": tokens, "logprobs": True, "top_logprobs": 3}
    return Ask(kind=kind, path="/v1/chat/completions", body=body)


def completion(text: str, tokens: int) -> Ask:
    body = {"prompt": text, "max_tokens": tokens, "logprobs": 3, "ignore_eos": True}
    return Ask(kind=KINDS[0], path="/v1/completions", body=body)


# -- measuring ---------------------------------------------------------------------------------


async def measure(
    model: str,
    options: argparse.Namespace,
    measured: Measured,
    command: Sequence[str] = COMMAND,
) -> None:
    """Every arm's replies, from servers that are all there throughout."""
    asks = prompts(options.prompts, options.tokens)
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            servers = {
                arm: await stack.enter_async_context(
                    serving([*command, "serve", model], flags, Path(folder) / f"{arm}.jsonl")
                )
                for arm, flags in ARMS.items()
            }
            session = await stack.enter_async_context(aiohttp.ClientSession())
            name = servers[PLAIN].model
            measured.families[name] = await family_of(session, servers["head"])
            for server in servers.values():
                await reply(session, server, asks[0], 0.0, 0)
            for _ in range(options.runs):
                for kind in KINDS:
                    chosen = [ask for ask in asks if ask.kind == kind]
                    for temperature in TEMPERATURES:
                        for streams in STREAMS:
                            case = Case(
                                model=name, kind=kind, temperature=temperature, streams=streams
                            )
                            await measure_case(session, servers, chosen, case, measured)


async def measure_case(
    session: aiohttp.ClientSession,
    servers: Mapping[str, Server],
    asks: Sequence[Ask],
    case: Case,
    measured: Measured,
) -> None:
    """Prompts, so many at once, to every arm in turn: all arms meet the same machine."""
    for first in range(0, len(asks), case.streams):
        for arm, server in servers.items():
            group = enumerate(asks[first : first + case.streams], first)
            found = await asyncio.gather(
                *(reply(session, server, ask, case.temperature, seed) for seed, ask in group)
            )
            measured.of(case, arm).extend(found)


async def family_of(session: aiohttp.ClientSession, server: Server) -> str:
    """The family's name, and that the server drafts with a head. Raises `StartError`."""
    async with session.get(f"{server.address}/info") as response:
        info = await response.json()
    if not info["drafts"]:
        raise StartError(f"{server.model} has no draft head")
    family: str = info["family"]
    return family


async def reply(
    session: aiohttp.ClientSession, server: Server, ask: Ask, temperature: float, seed: int
) -> Reply:
    body = {**ask.body, "model": server.model, "temperature": temperature, "seed": seed}
    async with session.post(f"{server.address}{ask.path}", json=body) as response:
        text = await response.text()
        if response.status != 200:
            raise StartError(f"the server answered {response.status}: {text[:200]}")
    answer = json.loads(text)
    receipt = answer["tensorfold"]
    return Reply(
        proof=(receipt["token_sha256"], json.dumps(answer["choices"][0]["logprobs"])),
        tokens=answer["usage"]["completion_tokens"],
        rounds=receipt["rounds"],
        seconds=receipt["decode_seconds"],
        sources={
            name: (counts["drafted"], counts["accepted"])
            for name, counts in receipt["drafts"].items()
        },
    )


# -- judging -----------------------------------------------------------------------------------

SAME = "replies are those without drafts"


def tokens_a_round(replies: Sequence[Reply]) -> float:
    """The token that comes with the prompt left out."""
    rounds = sum(one.rounds for one in replies)
    return sum(one.tokens - 1 for one in replies) / rounds if rounds else 0.0


def rate_of(replies: Sequence[Reply]) -> float:
    """Tokens a second of one stream."""
    seconds = sum(one.seconds for one in replies)
    return sum(one.tokens - 1 for one in replies) / seconds if seconds else 0.0


def speed_ratio(replies: Sequence[Reply], plain: Sequence[Reply]) -> float:
    """The median over the prompts of how much faster a reply was."""
    pairs = zip(replies, plain, strict=True)
    ratios = [two.seconds / one.seconds for one, two in pairs if one.seconds and two.seconds]
    return statistics.median(ratios) if ratios else 1.0


def judged(measured: Measured) -> Outcome:
    checks, rows = [], []
    for case in measured.cases():
        plain = measured.of(case, PLAIN)
        for arm in ARMS:
            replies = measured.of(case, arm)
            same = sum(one.proof == two.proof for one, two in zip(replies, plain, strict=True))
            words = f"{case.model}, {case.kind}, temperature {case.temperature:g}, "
            words += f"{case.streams} at once, {arm}"
            if arm != PLAIN:
                found = f"{same} of {len(plain)} are equal"
                checks.append(Check(name=f"{SAME}: {words}", holds=same == len(plain), found=found))
            checks += bars(case, arm, measured, words)
            rows.append(
                (
                    case.model,
                    case.kind,
                    case.temperature,
                    case.streams,
                    arm,
                    tokens_a_round(replies),
                    rate_of(replies),
                    speed_ratio(replies, plain),
                    guesses(replies),
                )
            )
    table = Table(
        title="drafts by source; the same prompts to every arm in turn",
        columns=(
            "model",
            "prompts",
            "temperature",
            "streams",
            "drafts",
            "tokens a round",
            "tok/s a stream",
            "times undrafted",
            "accepted of rows",
        ),
        rows=tuple(rows),
        groups=4,
    )
    return Outcome(
        scenario="drafts",
        tables=(table,),
        checks=tuple(checks),
        document={"families": measured.families, "arms": {arm: list(ARMS[arm]) for arm in ARMS}},
    )


def bars(case: Case, arm: str, measured: Measured, words: str) -> list[Check]:
    """What a lone greedy stream must reach, and that drafts never cost it speed."""
    if case.streams != 1 or arm == PLAIN:
        return []
    replies = measured.of(case, arm)
    ratio = speed_ratio(replies, measured.of(case, PLAIN))
    checks = [
        Check(name=f"no slower than undrafted: {words}", holds=ratio >= NOISE, found=f"{ratio:.2f}")
    ]
    if case.temperature:
        return checks
    made = tokens_a_round(replies)
    least = LEAST_BY_FAMILY.get(measured.families[case.model])
    if arm == "head" and case.kind == KINDS[0] and least is not None:
        name = f"at least {least} tokens a round: {words}"
        checks.append(Check(name=name, holds=made >= least, found=f"{made:.2f}"))
    if arm == "copies" and case.kind == KINDS[1]:
        name = f"at least {LEAST_COPIES} tokens a round: {words}"
        checks.append(Check(name=name, holds=made >= LEAST_COPIES, found=f"{made:.2f}"))
    if arm == "both" and case.kind == KINDS[0]:
        rate = rate_of(replies)
        name = f"at least {LEAST_RATE:g} tokens a second: {words}"
        checks.append(Check(name=name, holds=rate >= LEAST_RATE, found=f"{rate:.0f}"))
    return checks


def guesses(replies: Sequence[Reply]) -> str:
    names = sorted({name for one in replies for name in one.sources})
    told = []
    for name in names:
        counts = [one.sources.get(name, (0, 0)) for one in replies]
        told.append(f"{name} {sum(c[1] for c in counts)} of {sum(c[0] for c in counts)}")
    return ", ".join(told)


if __name__ == "__main__":
    sys.exit(main())
