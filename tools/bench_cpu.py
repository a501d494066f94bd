"""What exactness costs on the CPU: the engine beside a plain loop, in one process, in turns.

    python -m tensorfold.tools.bench_cpu [DIR] [--streams 1,8] [--tokens 128] [--output FILE]

The plain loop runs the same model with the same forms of the ops and the same sampling on rows as
they come: no padding, no records, no promise. Rates are tokens a second over decode alone, medians
of turns taken alternately.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
from tensorfold.tools.models import find_model

PROMPT = 40
KINDS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1.0),
    "cut": Sampling(temperature=1.0, top_p=0.95),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    installed = discover()
    model = find_model(installed, choose_backend(installed, "cpu-reference"), options.model)
    assert model.family is not None
    order = EngineOrder(
        settings=read({"context": 2048}, {}), folder=model.folder, family=model.family
    )
    started = time.perf_counter()
    engine = open_engine(order)
    opened = time.perf_counter() - started
    rows = [
        measure(engine, model.family, streams, kind, options)
        for streams in map(int, options.streams.split(","))
        for kind in KINDS
    ]
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
            pending += sampling.draw(logits, [draw], engine.steps_V)
        started = time.perf_counter()
        for _ in range(tokens):
            runs = [Run((t,), lane, length) for t, lane in zip(pending, lanes, strict=True)]
            rows = batch.build(runs, storage, prompt=False, tile=1, context=context)
            logits = model.logits(model.window(rows))
            model.settle(rows, rows.count_B)
            length += 1
            draws = [Draw(sampling=how, seed=i, position=length) for i in range(len(asked))]
            pending = sampling.draw(logits, draws, engine.steps_V)
        return tokens * len(asked), time.perf_counter() - started

    return run


def show(rows: list[dict[str, Any]], opened: float) -> None:
    table = Table("streams", "sampling", "engine tok/s", "plain tok/s", "engine / plain")
    for row in rows:
        table.add_row(
            str(row["streams"]),
            row["sampling"],
            f"{row['engine']:.0f}",
            f"{row['plain']:.0f}",
            f"{row['ratio']:.2f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"prompt {PROMPT} tokens, threads {torch.get_num_threads()}, opened in {opened:.2f} s"
    )


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
