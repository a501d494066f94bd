"""Rounds of an engine of several ranks, routed experts cut by ids or by width.

    python -m tensorfold.tools.bench_expert_cut glm53 --cut width [--ranks 2] [--widths true]

One cut a run: start it twice. Weights are random, and the same for every cut and number of ranks.
Under `torchrun` its processes are the ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tensorfold.core.backend_api import Place, no_progress
from tensorfold.core.engine.index_split import IndexSplit
from tensorfold.core.engine.ranks import follow, following, leading
from tensorfold.core.engine_api import Engine, Opening, Piece, Window
from tensorfold.core.errors import StartError
from tensorfold.core.settings import read
from tensorfold.core.share import IDS, WIDTH
from tensorfold.plugins.manager import discover
from tensorfold.tools.arguments import Parser, exit_code, numbers, positive
from tensorfold.tools.bench_decode import RAW
from tensorfold.tools.decode import engines
from tensorfold.tools.launch import end_at_once, given_place, launched, leave, tether, told

# Rounds before the first that is timed.
WARM = 3
GRID = 64


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code("bench_expert_cut", lambda: run(parse(arguments), os.environ))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="bench_expert_cut", description=__doc__)
    parser.add_argument("family", choices=("glm53", "dsv41"))
    parser.add_argument("--cut", choices=(IDS, WIDTH), default=IDS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--widths", choices=("true", "tiny"), default="tiny")
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--backend", default="cpu-reference")
    parser.add_argument("--no-compile", action="store_true", help="captured, not compiled")
    parser.add_argument("--dtype", default="", help="as `tensorfold serve` takes it")
    parser.add_argument(
        "--streams", type=numbers, default="1,8,32", help="streams of a round, a row each"
    )
    parser.add_argument("--context", type=int, default=64, help="rows before those rounds")
    parser.add_argument("--reps", type=int, default=30)
    options = parser.parse_args(arguments)
    if options.reps < 2:
        raise StartError(f"--reps is {options.reps}: quartiles need 2 rounds at least")
    return options


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    place = given_place(environ)
    if place is not None:
        tether(environ)
        with told("bench_expert_cut", environ, leave):
            return ranked(options, place, leave)
    if options.ranks < 2:
        raise StartError(f"--ranks is {options.ranks}: nothing is cut for less than 2")
    with (
        launched(options.ranks) as launch,
        told("bench_expert_cut", environ, launch.left, launch.why),
    ):
        launch.met.set()
        return ranked(options, launch.place, launch.left)


def ranked(options: argparse.Namespace, place: Place, left: Callable[[int], int]) -> int:
    offer = discover().families.get(options.family)
    if offer is None:
        raise StartError(f"there is no family {options.family}")
    lanes = max(options.streams)
    flags: dict[str, Any] = {
        "backend": options.backend,
        "dtype": options.dtype,
        "ranks": place.share.ranks,
        "expert_cut": options.cut,
        "lanes": lanes,
        "context": options.context + len(options.streams) * (options.reps + WARM) + GRID,
        "chunk_rows": -(-options.context // GRID) * GRID,
        "window_rows": 1,
        "drafts": 0,
        "copies": False,
    }
    raw = RAW[options.family, options.widths](options.layers)
    if options.no_compile:
        flags["compile"] = False
    engine = engines.opened(
        offer.value, raw, options.backend, read(flags, {}), no_progress, place=place
    )
    if place.share.rank:
        follow(engine, following(engine, end_at_once))
        return left(0)
    first = leading(engine, IndexSplit())
    for held in engine.info.rank_bytes:
        print(f"weights {held.weights:,} bytes, state {held.state:,}", flush=True)
    for count, seconds in measured(first, options).items():
        low, middle, high = statistics.quantiles(seconds, n=4)
        print(
            f"{options.family} {options.widths}, {place.share.ranks} ranks, by {options.cut}: "
            f"{count} rows {1e3 * middle:.3f} ms ({1e3 * low:.3f} to {1e3 * high:.3f})",
            flush=True,
        )
    first.shutdown()
    return left(0)


def measured(engine: Engine, options: argparse.Namespace) -> dict[int, list[float]]:
    """Seconds of rounds of so many streams, each fed tokens drawn by its own number."""
    tokens, rows = [], options.context
    most = engine.info.context - rows
    for stream in range(max(options.streams)):
        generator = torch.Generator().manual_seed(stream)
        size = (engine.info.context,)
        tokens.append(torch.randint(0, engine.info.vocab_size, size, generator=generator).tolist())
        engine.open(Opening(stream=stream, prompt=tuple(tokens[-1][:rows]), most=most))
        engine.fill([Piece(stream=stream, start=0, end=rows)]).land()
    at = [rows] * len(tokens)
    found: dict[int, list[float]] = {}
    for count in options.streams:
        seconds = []
        for _ in range(WARM + options.reps):
            windows = [
                Window(stream=stream, tokens=(tokens[stream][at[stream]],))
                for stream in range(count)
            ]
            began = time.perf_counter()
            engine.round(windows).land()
            seconds.append(time.perf_counter() - began)
            for stream in range(count):
                at[stream] += 1
        found[count] = seconds[WARM:]
    return found


if __name__ == "__main__":
    sys.exit(main())
