"""One long prompt at a running server: first, repeated, and by several readers at once.

    python -m tensorfold.tools.bench_cache BASE MODEL [--prompt-tokens 4096 | --prompt-file FILE]

Times are a client's: from the request to the first token, and from the first token to the last; the
receipt tells the seconds from a prompt's admission to its first token. What was kept of the prompt
is told by the server's usage. Every reply is greedy and must be the same tokens; a missing or
failed one is no reply. Exits with 1 when a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from tensorfold.core.errors import StartError
from tensorfold.tools.arguments import Parser, at_least, exit_code, positive, seconds
from tensorfold.tools.asking import Server, connect
from tensorfold.tools.sim.report import Cell, Check, Outcome, Table, document, show

FIRST, REPEATED, CONCURRENT = "first", "repeated", "concurrent"
UNMEASURED = "unmeasured"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One request. `failed` says in words why it has no reply; nothing else is set then."""

    phase: str
    failed: str | None = None
    prompt: int = 0
    cached: int = 0
    made: int = 0
    sha256: str = ""
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode: float | None = None

    @property
    def kind(self) -> str:
        return "reused" if self.cached else "cold"

    def json(self) -> dict[str, Any]:
        if self.failed is not None:
            return {"phase": self.phase, "failed": self.failed}
        return {
            "phase": self.phase,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "completion_tokens": self.made,
            "kind": self.kind,
            "token_sha256": self.sha256,
            "ttft_s": self.ttft_s,
            "prefill_s": self.prefill_s,
            "decode_tok_s": UNMEASURED if self.decode is None else self.decode,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code("bench_cache", lambda: run(parse(arguments)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="bench_cache", description=__doc__)
    parser.add_argument("base", help="the server's address")
    parser.add_argument("model", help="as the server names it")
    parser.add_argument("--prompt-tokens", type=positive, default=4096, help="made up, by --seed")
    parser.add_argument("--prompt-file", type=Path, help="a text in place of made-up tokens")
    parser.add_argument("--expected-prompt-tokens", type=int, help="refuse another prompt length")
    parser.add_argument("--seed", type=int, default=1234, help="another one is another prompt")
    parser.add_argument("--tokens", type=positive, default=32, help="tokens of each reply")
    parser.add_argument("--streams", type=at_least(0), default=2, help="readers at once")
    parser.add_argument("--repeats", type=at_least(0), default=2, help="requests one after another")
    parser.add_argument("--timeout", type=seconds, default=1800.0, help="seconds of a request")
    parser.add_argument("--require-cold", action="store_true", help="nothing kept at first")
    parser.add_argument("--require-reuse", action="store_true", help="something kept ever after")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    parser.add_argument("--plot", type=Path, help="file for a picture of the first-token times")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    rows = asyncio.run(measure(options))
    outcome = judged(rows, options)
    show(outcome, Console() if sys.stdout.isatty() else Console(width=120))
    if options.output is not None:
        options.output.write_text(json.dumps(document(outcome), indent=2) + "\n")
    if options.plot is not None:
        draw(rows, options.plot)
    return 0 if outcome.holds else 1


# -- measuring ---------------------------------------------------------------------------------


async def measure(options: argparse.Namespace) -> list[Row]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        server = await connect(session, options.base, options.timeout)
        prompt = made_prompt(options, server)
        one_by_one = [FIRST, *[REPEATED] * options.repeats]
        rows = [await asked(server, options, prompt, phase) for phase in one_by_one]
        together = (asked(server, options, prompt, CONCURRENT) for _ in range(options.streams))
        return [*rows, *await asyncio.gather(*together)]


def made_prompt(options: argparse.Namespace, server: Server) -> str | list[int]:
    """The file's text, or tokens drawn from the server's vocabulary."""
    if options.prompt_file is not None:
        try:
            text: str = options.prompt_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"--prompt-file cannot be read: {error}") from None
        return text
    vocab_size = server.info.get("vocab_size")
    if not isinstance(vocab_size, int):
        raise StartError("the server does not tell its vocabulary: give --prompt-file")
    draw = random.Random(options.seed)
    return [draw.randrange(vocab_size) for _ in range(options.prompt_tokens)]


async def asked(
    server: Server, options: argparse.Namespace, prompt: str | list[int], phase: str
) -> Row:
    """One streamed request."""
    body = {
        "model": options.model,
        "prompt": prompt,
        "max_tokens": options.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # A long prompt is sent piece by piece.
    sent = io.BytesIO(json.dumps(body).encode())
    timeout = aiohttp.ClientTimeout(total=options.timeout)
    began = time.perf_counter()
    times: list[float] = []
    receipt: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    try:
        async with server.session.post(
            f"{server.base}/v1/completions", data=sent, headers=JSON, timeout=timeout
        ) as response:
            if response.status != 200:
                return Row(phase=phase, failed=f"{response.status}: {await response.text()}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                came = time.perf_counter()
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    return Row(phase=phase, failed=event["error"]["message"])
                receipt = event.get("tensorfold") or receipt
                usage = event.get("usage") or usage
                # An event with a choice is of tokens that have come.
                if event["choices"]:
                    times.append(came)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return Row(phase=phase, failed=str(error) or type(error).__name__)
    return row(phase, began, times, usage, receipt)


def row(
    phase: str,
    began: float,
    times: Sequence[float],
    usage: dict[str, Any],
    receipt: dict[str, Any],
) -> Row:
    told = {"token_sha256", "prefill_seconds"} <= receipt.keys() and "completion_tokens" in usage
    if not times or not told:
        return Row(phase=phase, failed="the stream ended without tokens, usage or receipt")
    made = usage["completion_tokens"]
    seconds = times[-1] - times[0]
    return Row(
        phase=phase,
        prompt=usage["prompt_tokens"],
        cached=usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
        made=made,
        sha256=receipt["token_sha256"],
        ttft_s=times[0] - began,
        prefill_s=receipt["prefill_seconds"],
        decode=(made - 1) / seconds if made > 1 and seconds > 0 else None,
    )


# -- judging -----------------------------------------------------------------------------------


def judged(rows: Sequence[Row], options: argparse.Namespace) -> Outcome:
    good = [one for one in rows if one.failed is None]
    hashes = {one.sha256 for one in good}
    checks = [
        Check(
            name="every request has its reply",
            holds=len(good) == len(rows),
            found=f"{len(good)} of {len(rows)}",
        ),
        Check(
            name="every reply is the same tokens",
            holds=len(hashes) == 1 and len(good) == len(rows),
            found=f"{len(hashes)} hashes over {len(good)} replies",
        ),
    ]
    expected = options.expected_prompt_tokens
    if expected is not None:
        lengths = sorted({one.prompt for one in good})
        checks.append(
            Check(
                name=f"the prompt has {expected} tokens",
                holds=lengths == [expected],
                found=", ".join(map(str, lengths)) or UNMEASURED,
            )
        )
    if options.require_cold:
        first = [one for one in good if one.phase == FIRST]
        checks.append(
            Check(
                name="the first request is cold",
                holds=[one.kind for one in first] == ["cold"],
                found=", ".join(f"{one.cached} cached" for one in first) or UNMEASURED,
            )
        )
    if options.require_reuse:
        later = [one for one in rows if one.phase != FIRST]
        reused = [one for one in later if one.failed is None and one.cached]
        checks.append(
            Check(
                name="every later request reuses what was kept",
                holds=bool(later) and len(reused) == len(later),
                found=f"{len(reused)} of {len(later)}",
            )
        )
    settings = {
        "tokens": options.tokens,
        "streams": options.streams,
        "repeats": options.repeats,
        "seed": None if options.prompt_file else options.seed,
    }
    return Outcome(
        scenario="cache",
        tables=(table(rows, options),),
        checks=tuple(checks),
        document={"settings": settings, "rows": [one.json() for one in rows]},
    )


def table(rows: Sequence[Row], options: argparse.Namespace) -> Table:
    cells: list[tuple[Cell, ...]] = []
    for one in rows:
        if one.failed is not None:
            cells.append((one.phase, *[UNMEASURED] * 8))
            continue
        rate = UNMEASURED if one.decode is None else f"{one.decode:.1f}"
        figures = (one.prompt, one.cached, one.made, one.kind, one.sha256[:12])
        times = (f"{one.ttft_s:.3f}", f"{one.prefill_s:.3f}")
        cells.append((one.phase, *figures, *times, rate))
    return Table(
        title=f"one prompt, {options.tokens} tokens a reply, {options.repeats} repeats, "
        f"{options.streams} at once",
        columns=(
            "request",
            "prompt",
            "cached",
            "made",
            "kind",
            "tokens",
            "ttft, s",
            "prefill, s",
            "tok/s",
        ),
        rows=tuple(cells),
    )


def draw(rows: Sequence[Row], file: Path) -> None:
    """First-token times, a bar a request that has its reply."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3))
    bars = {f"{n}: {one.phase}": one.ttft_s for n, one in enumerate(rows) if one.failed is None}
    axes.bar(list(bars), list(bars.values()))
    axes.set_ylabel("first token, s")
    axes.tick_params(axis="x", rotation=30)
    figure.tight_layout()
    figure.savefig(file)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
