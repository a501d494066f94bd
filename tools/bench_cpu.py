"""What exactness costs on the CPU: the engine beside a plain loop, in one process, in turns.

    python -m tensorfold.tools.bench_cpu [DIR] [--streams 1,8] [--tokens 128] [--output FILE]

The plain loop runs the same model with the same forms of the ops and the same sampling on rows as
they come: no padding, no records, no promise. Rates are tokens a second over decode alone, medians
of turns taken alternately. With `--http` a server of its own gives the same replies to clients,
and their rate is printed apart, as a share of the engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import torch
from rich.console import Console
from rich.table import Table

from tensorfold.backends.cpu_reference.backend import open_engine
from tensorfold.backends.cpu_reference.products import UNPADDED
from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine import batch, optable, sampling
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.sampling import Draw
from tensorfold.core.engine.state import allocate
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Sampling, Window
from tensorfold.core.settings import read
from tensorfold.plugins.choose import choose_backend
from tensorfold.plugins.manager import discover
from tensorfold.tools.arguments import Parser, exit_code, numbers, positive
from tensorfold.tools.models import find_model
from tensorfold.tools.own_command import own_command

PROMPT = 40
CONTEXT = 2048
KINDS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1.0),
    "cut": Sampling(temperature=1.0, top_p=0.95),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="bench_cpu", description=__doc__)
    parser.add_argument("model", nargs="?", default="", help="as `tensorfold serve` takes it")
    parser.add_argument("--streams", type=numbers, default="1,8", help="streams of a round")
    parser.add_argument("--tokens", type=positive, default=96, help="tokens of each reply")
    parser.add_argument("--turns", type=positive, default=5, help="how often each is run")
    parser.add_argument("--http", action="store_true", help="also ask a server for the replies")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    return exit_code("bench_cpu", lambda: run(parser.parse_args(arguments)))


def run(options: argparse.Namespace) -> int:
    installed = discover()
    model = find_model(installed, choose_backend(installed, "cpu-reference"), options.model)
    assert model.family is not None
    order = EngineOrder(
        settings=read({"context": CONTEXT, "drafts": 0, "copies": False}, {}),
        folder=model.folder,
        family=model.family,
    )
    started = time.perf_counter()
    engine = open_engine(order)
    opened = time.perf_counter() - started
    rows = [
        measure(engine, model.family, streams, kind, options)
        for streams in options.streams
        for kind in KINDS
    ]
    if options.http:
        serve_and_ask(model.folder, engine.info.vocab_size, rows, options)
    show(rows, opened)
    if options.output:
        options.output.write_text(json.dumps({"open_seconds": opened, "rows": rows}, indent=2))
    return 0


def prompts(streams: int, vocab_size: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(1)
    many = torch.randint(0, vocab_size, (streams, PROMPT), generator=generator)
    return [tuple(row) for row in many.tolist()]


def measure(
    engine: TorchEngine, family: Any, streams: int, kind: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Engine and plain loop in turns, so that both meet the same machine."""
    asked = prompts(streams, engine.info.vocab_size)
    plain = plain_loop(engine, family)
    ours, theirs = [], []
    for _ in range(options.turns):
        ours.append(rate(lambda: run_engine(engine, asked, KINDS[kind], options.tokens)))
        theirs.append(rate(lambda: plain(asked, KINDS[kind], options.tokens)))
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {
        "streams": streams,
        "sampling": kind,
        "engine": mine,
        "plain": other,
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "engine_runs": ours,
        "plain_runs": theirs,
    }


def rate(run: Callable[[], tuple[int, float]]) -> float:
    tokens, seconds = run()
    return tokens / seconds


def run_engine(
    engine: TorchEngine, asked: list[tuple[int, ...]], how: Sampling, tokens: int
) -> tuple[int, float]:
    pending = {}
    for stream, prompt in enumerate(asked):
        engine.open(
            Opening(stream=stream, prompt=prompt, most=tokens + 1, sampling=how, seed=stream)
        )
        filled = engine.fill([Piece(stream=stream, start=0, end=len(prompt))]).land()[0]
        assert filled.token is not None, filled
        pending[stream] = filled.token
    started = time.perf_counter()
    for _ in range(tokens):
        windows = [Window(stream=stream, tokens=(token,)) for stream, token in pending.items()]
        for landed in engine.round(windows).land():
            pending[landed.stream] = landed.tokens[-1]
    seconds = time.perf_counter() - started
    for stream in pending:
        engine.close(stream)
    return tokens * len(asked), seconds


def plain_loop(
    engine: TorchEngine, family: Any
) -> Callable[[list[tuple[int, ...]], Sampling, int], tuple[int, float]]:
    """The same model on unpadded ops, driven by the shortest loop there is."""
    forms = candidates((UNPADDED,))
    ops = optable.table({name: choices[0].call for name, choices in forms.items()})
    config, weights = engine.model.config, engine.model.weights  # type: ignore[attr-defined]
    context = engine.info.context

    @torch.inference_mode()
    def run(asked: list[tuple[int, ...]], how: Sampling, tokens: int) -> tuple[int, float]:
        spec = family.state_spec(config, window_rows=1)
        storage = allocate(
            spec, lanes=len(asked), context=context, kept_bytes=0, device=torch.device("cpu")
        )
        model = family.model(config, weights, ops, storage.buffers)
        lanes = [storage.claim(context).lane for _ in asked]
        pending, length = [], PROMPT
        for stream, (prompt, lane) in enumerate(zip(asked, lanes, strict=True)):
            rows = batch.build(
                [Run(prompt, lane, 0)], storage, prompt=True, tile=1, context=context
            )
            logits = model.logits(model.prompt(rows)[-1:])
            draw = Draw(sampling=how, seed=stream, position=length)
            pending += sampling.draw(engine.ops, logits, [draw])
        started = time.perf_counter()
        for _ in range(tokens):
            runs = [Run((t,), lane, length) for t, lane in zip(pending, lanes, strict=True)]
            rows = batch.build(runs, storage, prompt=False, tile=1, context=context)
            logits = model.logits(model.window(rows))
            model.settle(rows, rows.count_B)
            length += 1
            draws = [Draw(sampling=how, seed=i, position=length) for i in range(len(asked))]
            pending = sampling.draw(engine.ops, logits, draws)
        return tokens * len(asked), time.perf_counter() - started

    return run


def serve_and_ask(
    folder: Path, vocab_size: int, rows: list[dict[str, Any]], options: argparse.Namespace
) -> None:
    """Fill in each row's `http` rate, from the clients' side of a server in its own process."""
    command = [*own_command("tensorfold.tools.cli"), "serve", str(folder), "--port", "0"]
    command += ["--context", str(CONTEXT), "--log", "warning"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        base = ""
        for line in server.stderr:
            if found := re.search(r"http://\S+:\d+", line):
                base = found.group()
                break
        try:
            for row in rows:
                asked = prompts(row["streams"], vocab_size)
                how = KINDS[row["sampling"]]
                rates = [asyncio.run(ask(base, asked, how, options.tokens)) for _ in range(3)]
                row["http"] = statistics.median(rates)
        finally:
            server.terminate()


async def ask(base: str, asked: list[tuple[int, ...]], how: Sampling, tokens: int) -> float:
    """Aggregate tokens a second: all but first tokens, first token of any to last of any."""
    async with aiohttp.ClientSession(read_bufsize=1 << 20) as session:
        models = await (await session.get(f"{base}/v1/models")).json()
        name = models["data"][0]["id"]

        async def one(stream: int, prompt: tuple[int, ...]) -> tuple[float, float]:
            body = {
                "model": name,
                "prompt": list(prompt),
                "max_tokens": tokens + 1,
                "temperature": how.temperature,
                "top_p": how.top_p,
                "seed": stream,
                "ignore_eos": True,
                "stream": True,
            }
            async with session.post(f"{base}/v1/completions", json=body) as reply:
                reply.raise_for_status()
                times = [
                    time.perf_counter()
                    async for line in reply.content
                    if line.startswith(b"data: {") and b'"text":' in line
                ]
            return times[0], times[-1]

        spans = await asyncio.gather(*(one(i, prompt) for i, prompt in enumerate(asked)))
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    return tokens * len(asked) / (last - first)


def show(rows: list[dict[str, Any]], opened: float) -> None:
    table = Table(
        "streams",
        "sampling",
        "engine tok/s",
        "plain tok/s",
        "engine / plain",
        "HTTP tok/s",
        "HTTP / engine",
    )
    for row in rows:
        table.add_row(
            str(row["streams"]),
            row["sampling"],
            f"{row['engine']:.0f}",
            f"{row['plain']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['http']:.0f}" if "http" in row else "unmeasured",
            f"{row['http'] / row['engine']:.2f}" if "http" in row else "unmeasured",
        )
    console = Console()
    console.print(table)
    console.print(
        f"prompt {PROMPT} tokens, threads {torch.get_num_threads()}, opened in {opened:.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
