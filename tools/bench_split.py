"""Long prompts at an engine of several ranks: the index whole, split by rows, and by cost.

    python -m tensorfold.tools.bench_split glm53 --ranks 2 [--layers 4] [--prompts 8192,131072]

A family at its released widths with few layers and random weights, a GPU a rank. Each prompt goes
cold over HTTP to one server whose index is whole, split by rows, by cost, by cost, by rows and
whole again; first tokens are timed by `bench_cache`, and by the receipts from the prompt's
admission on, and every reply must be the same tokens. The index's part of the kernels' time is rank
0's. Rounds are timed through the engine's own calls, beside their floor: the bytes of the rank that
has most to read over the measured copy rate, and the exchanges, each timed alone. Exits with 1 when
a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import torch
from rich.console import Console

from tensorfold.core.backend_api import Place, no_progress
from tensorfold.core.engine.index_split import IndexSplit
from tensorfold.core.engine.ranks import LeadingEngine, follow, following, leading
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Window
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import ChatFormat
from tensorfold.core.index_shares import COST, ROWS
from tensorfold.core.server.app import serving
from tensorfold.core.settings import read
from tensorfold.core.share import Share
from tensorfold.core.text import Text, load_text
from tensorfold.plugins.manager import discover
from tensorfold.tools import bench_cache
from tensorfold.tools.arguments import Parser, exit_code, numbers, positive
from tensorfold.tools.asking import connect
from tensorfold.tools.bench_decode import RAW
from tensorfold.tools.decode import bursting, clocks, engines
from tensorfold.tools.decode.floors import Floors
from tensorfold.tools.decode.profiling import Kernel, index_kernels, kernels, share_of
from tensorfold.tools.decode.ranked import Spied, exchange_seconds, likely_words
from tensorfold.tools.decode.split_figures import ARMS, WHOLE, judged
from tensorfold.tools.launch import given_place, kept, launched, leave, tether, told
from tensorfold.tools.sim.report import Outcome, document, show

POSITION, ROOM, REPLY = 2048, 256, 4
# Rounds before those that are timed, and of a look at their kernels.
WARM, REPLAYED = 5, 10
TINY = Path(__file__).parents[1] / "families" / "glm53" / "tiny"


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code("bench_split", lambda: run(parse(arguments)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="bench_split", description=__doc__)
    parser.add_argument("family", choices=("glm53", "dsv41"))
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--widths", choices=("true", "tiny"), default="true")
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--backend", default="cuda-triton")
    parser.add_argument("--no-compile", action="store_true", help="captured, not compiled")
    parser.add_argument(
        "--prompts", type=numbers, default="8192,32768,131072,524288", help="rows of prompts"
    )
    parser.add_argument("--chunk", type=positive, default=8192, help="rows of a prompt's forward")
    parser.add_argument("--streams", type=numbers, default="1,8", help="streams of a round")
    parser.add_argument("--context", type=int, default=512, help="rows before those rounds")
    parser.add_argument("--reps", type=positive, default=100, help="rounds of every arm")
    parser.add_argument("--passes", type=positive, default=1, help="how often the six arms are run")
    parser.add_argument("--profile", action="store_true", help="rank 0's time by kernel")
    parser.add_argument("--unchecked", action="store_true", help="to debug; told in every output")
    parser.add_argument("--cache-dir", default="", help="folder for compiled artifacts")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    place = given_place(os.environ)
    if place is not None:
        if place.share.ranks != options.ranks:
            raise StartError(f"--ranks is {options.ranks}, and there are {place.share.ranks}")
        if place.share.rank:
            tether(os.environ)
        with told("bench_split", os.environ, leave):
            return of_rank(options, place, left=leave)
    if options.ranks == 1:
        return of_rank(options, None)
    with (
        launched(options.ranks) as launch,
        told("bench_split", os.environ, launch.left, launch.why),
    ):
        return of_rank(options, launch.place, launch.met.set, launch.left)


def of_rank(
    options: argparse.Namespace,
    place: Place | None,
    met: Callable[[], None] = lambda: None,
    left: Callable[[int], int] = kept,
) -> int:
    engine = opened(options, place)
    met()
    exchange = exchange_seconds(engine, max(options.streams))
    spied = Spied(engine, compiled=not options.no_compile and options.backend == "cuda-triton")
    likely_words(engine, Share() if place is None else place.share)
    if place is None:
        return measured(options, engine, engine, exchange, spied)
    if place.share.rank:
        follow(engine, following(engine, end_lost))
        return left(0)
    first = leading(engine, IndexSplit())
    try:
        code = measured(options, engine, first, exchange, spied)
    finally:
        first.shutdown()
    return left(code)


def end_lost(words: str) -> None:
    os.write(2, f"bench_split: a rank ends: {words}\n".encode())
    os._exit(1)


def opened(options: argparse.Namespace, place: Place | None) -> TorchEngine:
    offer = discover().families.get(options.family)
    if offer is None:
        raise StartError(f"there is no family {options.family}")
    family: Any = offer.value
    longest = max(*options.prompts, options.context + rounds_each(options))
    flags: dict[str, Any] = {
        "backend": options.backend,
        "ranks": options.ranks,
        "lanes": max(options.streams),
        "context": longest + ROOM,
        "chunk_rows": -(-min(options.chunk, longest) // family.grid) * family.grid,
        "window_rows": 1,
        "kept_bytes": 0,
        "cache_dir": options.cache_dir,
    }
    if options.no_compile:
        flags["compile"] = False
    began = time.perf_counter()

    def told(step: str, done: int, total: int) -> None:
        if not done:
            print(f"   {time.perf_counter() - began:6.1f} s {step}", flush=True)

    return engines.opened(
        family,
        RAW[options.family, options.widths](options.layers),
        options.backend,
        read(flags, {}),
        told if place is None or not place.share.rank else no_progress,
        checked=not options.unchecked,
        place=place,
    )


# -- measuring, on rank 0 ----------------------------------------------------------------------

Driven = TorchEngine | LeadingEngine


def measured(
    options: argparse.Namespace,
    engine: TorchEngine,
    first: Driven,
    exchange: Mapping[int, float],
    spied: Spied,
) -> int:
    found: dict[str, Any] = {
        "info": engine.info.to_json(),
        "exchange_s": dict(exchange),
        "checked": not options.unchecked,
        "prompts": {},
        "rounds": {},
        "profiles": {},
    }
    text = load_text(TINY, ChatFormat(template=""), engine.info.vocab_size, ())
    if torch.cuda.is_available():
        found["copy_rate"] = clocks.copy_rate(engine.storage.table.device)
    found["rounds"] = rounds_of(options, engine, first, spied, found)
    arms = tuple(dict.fromkeys(ARMS)) if options.ranks > 1 else (WHOLE,)

    def judge() -> Outcome:
        outcome = judged(options, found)
        if options.output is not None:
            options.output.write_text(json.dumps(document(outcome), indent=2) + "\n")
        return outcome

    for number, length in enumerate(options.prompts):
        # The first ones make what comes once.
        for arm in arms if not number else (WHOLE,):
            asyncio.run(cold(first, text, length, arm))
        rows = asyncio.run(prompts_of(options, first, text, length))
        found["prompts"][length] = {"rows": rows, "index": {}}
        judge()
    # What looks at kernels may slow those that come after.
    for count in options.streams if options.profile else ():
        found["profiles"][f"{REPLAYED} rounds of {count}"] = round_kernels(options, first, count)
    for length in options.prompts:
        for arm in arms:
            profiled = asyncio.run(kernels_of(first, text, length, arm))
            share = share_of(profiled, index_kernels()) if profiled else None
            found["prompts"][length]["index"][arm] = share
            if options.profile:
                found["profiles"][f"{length} {arm}"] = profiled
            print(f"   {length} {arm}: index {share} of the kernels", flush=True)
    outcome = judge()
    show(outcome, Console() if sys.stdout.isatty() else Console(width=140))
    return 0 if outcome.holds else 1


def split_of(arm: str) -> IndexSplit:
    return IndexSplit() if arm == WHOLE else IndexSplit(position=POSITION, shares=arm)


def rounds_of(
    options: argparse.Namespace,
    engine: TorchEngine,
    first: Driven,
    spied: Spied,
    found: Mapping[str, Any],
) -> dict[int, dict[str, Any]]:
    """Rounds of one row a stream, by streams: seconds by arm, and the floor."""
    model: Any = engine.model
    floors = Floors(
        family=options.family, config=model.config, weights=model.weights, dtype=engine.info.dtype
    )
    told: dict[int, dict[str, Any]] = {}
    for count in options.streams:
        pending = begun(options, first, count)
        played(first, pending, WARM)
        told[count] = {"seconds": in_turns(options, first, pending)}
        closed(first, pending)
        if spied.shown:
            own = spied.picked(options.ranks, count)
            moved = [floors.round_bytes(picked, [options.context] * count) for picked in own]
            told[count] |= {"picked": own, "bytes": moved}
        if spied.shown and "copy_rate" in found:
            # Three sums a layer, and the vocabulary's columns once.
            sums = 3 * len(model.weights.layers) + 1 if options.ranks > 1 else 0
            each = found["exchange_s"].get(max(2, count), 0.0)
            told[count]["floor"] = max(moved) / found["copy_rate"] + sums * each
        median = {arm: statistics.median(each) for arm, each in told[count]["seconds"].items()}
        print(f"   rounds of {count}: {median}, floor {told[count].get('floor')}", flush=True)
    return told


def in_turns(
    options: argparse.Namespace, first: Driven, pending: dict[int, int]
) -> dict[str, list[float]]:
    """Seconds of rounds by arm, one after another: a machine that is slower for a while is so for
    all of them."""
    seconds: dict[str, list[float]] = {arm: [] for arm in (WHOLE, ROWS, COST)}
    for _ in range(options.reps):
        for arm in ARMS:
            if isinstance(first, LeadingEngine):
                first.split = split_of(arm)
            seconds[arm] += played(first, pending, 1)
    return seconds


def rounds_each(options: argparse.Namespace) -> int:
    """Most rounds of a stream."""
    return len(ARMS) * options.reps + WARM + REPLAYED


def begun(options: argparse.Namespace, first: Driven, count: int) -> dict[int, int]:
    """Streams with prompts of their own, and the token that each has yet to read."""
    pending: dict[int, int] = {}
    for stream in range(count):
        generator = torch.Generator().manual_seed(stream)
        prompt = torch.randint(
            bursting.LEAST, bursting.MOST, (options.context,), generator=generator
        )
        most = rounds_each(options)
        first.open(Opening(stream=stream, prompt=tuple(prompt.tolist()), most=most))
        for start in range(0, options.context, first.info.chunk_rows):
            end = min(options.context, start + first.info.chunk_rows)
            (filled,) = first.fill([Piece(stream=stream, start=start, end=end)]).land()
        assert filled.token is not None, filled
        pending[stream] = filled.token
    return pending


def played(first: Driven, pending: dict[int, int], reps: int) -> list[float]:
    """Seconds of so many rounds, of replies that go on: the lane host says so, and a round may run
    ahead of its being asked for."""
    seconds = []
    for _ in range(reps):
        windows = [
            Window(stream=stream, tokens=(pending[stream],), goes_on=True) for stream in pending
        ]
        began = time.perf_counter()
        for landed in first.round(windows).land():
            pending[landed.stream] = landed.tokens[-1]
        seconds.append(time.perf_counter() - began)
    return seconds


def closed(first: Driven, pending: Mapping[int, int]) -> None:
    for stream in pending:
        first.close(stream)


def round_kernels(options: argparse.Namespace, first: Driven, count: int) -> list[Kernel]:
    pending = begun(options, first, count)
    played(first, pending, WARM)
    found = kernels(lambda: played(first, pending, REPLAYED))
    closed(first, pending)
    return found


async def prompts_of(
    options: argparse.Namespace, first: Driven, text: Text, length: int
) -> dict[str, list[bench_cache.Row]]:
    """A prompt under every arm, over HTTP."""
    own: dict[str, list[bench_cache.Row]] = {arm: [] for arm in (WHOLE, ROWS, COST)}
    for arm in (ARMS if options.ranks > 1 else (WHOLE, WHOLE)) * options.passes:
        row = await cold(first, text, length, arm)
        print(f"   {length} {arm}: {row.failed or f'{row.ttft_s:.4f} s'}", flush=True)
        own[arm].append(row)
    return own


async def cold(first: Driven, text: Text, length: int, arm: str) -> bench_cache.Row:
    """One request at a server of its own, with nothing kept."""
    if isinstance(first, LeadingEngine):
        first.split = split_of(arm)
    lent = bursting.Lent(first, first.info)
    settings = read({"port": "0", "log": "warning", "kept_bytes": 0}, {})
    generator = torch.Generator().manual_seed(length)
    low, high = bursting.LEAST, bursting.MOST
    prompt = torch.randint(low, high, (length,), generator=generator).tolist()
    asking = argparse.Namespace(model=bursting.MODEL, tokens=REPLY, timeout=600.0)
    async with serving(engine=lent, text=text, settings=settings, model=bursting.MODEL) as here:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            server = await connect(session, here.address, asking.timeout)
            return await bench_cache.asked(server, asking, prompt, bench_cache.FIRST)


async def kernels_of(first: Driven, text: Text, length: int, arm: str) -> list[Kernel]:
    """Rank 0's, of one cold prompt and its reply."""
    return await asyncio.to_thread(kernels, lambda: asyncio.run(cold(first, text, length, arm)))


if __name__ == "__main__":
    sys.exit(main())
