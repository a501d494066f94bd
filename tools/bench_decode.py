"""A family at its released widths with few layers: prompts and rounds beside their floors.

    python -m tensorfold.tools.bench_decode glm53 [--layers 4] [--peer] [--free] [--profile]

Weights are random and made on the device; Engram tables are smaller than the released ones, which
no GPU holds, and say so. A floor is the bytes that must move over the copy rate, or the operations
over the matrix rate, both measured here, with the experts that rows really picked. Nothing is timed
of an engine whose promises do not hold here. `--free` adds the same engine with library products
free to choose, `--peer` adds transformers. What could not be measured is told as unmeasured. Exits
with 1 when a bar is missed or a part failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tensorfold.core.backend_api import no_progress
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.core.settings import read
from tensorfold.plugins.manager import discover
from tensorfold.tools import widths
from tensorfold.tools.arguments import Parser, exit_code, numbers, positive, seconds
from tensorfold.tools.decode import clocks, engines, gaps, rounds
from tensorfold.tools.decode.figures import GAP_BARS, Figures, outcome_of
from tensorfold.tools.decode.floors import Floors
from tensorfold.tools.decode.profiling import index_kernels, kernels, share_of
from tensorfold.tools.decode.soundness import holds
from tensorfold.tools.own_command import own_command
from tensorfold.tools.sim.report import document, show
from tensorfold.tools.start_times import StartTimes

RAW: Mapping[tuple[str, str], Callable[[int], dict[str, Any]]] = {
    ("glm53", "true"): lambda layers: widths.glm53(layers, dense=0),
    ("dsv41", "true"): lambda layers: widths.dsv41(layers, engram=100_000),
    ("glm53", "tiny"): widths.tiny_glm53,
    ("dsv41", "tiny"): lambda layers: widths.tiny_dsv41(layers, engram=50),
}
# Tokens after a stream's prompt that there is room for.
ROOM = 4096
# Gaps between rounds that are counted at least.
GAPS = 60


@dataclass(kw_only=True, slots=True)
class Bench:
    """What is asked, and what was found so far."""

    options: argparse.Namespace
    family: Any
    raw: dict[str, Any]
    figures: Figures = field(default_factory=Figures)

    def part(self, name: str, run: Callable[[], None]) -> None:
        """Run a part; one that fails is told and costs the others nothing."""
        print(f"-- {name}", flush=True)
        try:
            run()
        except Exception as error:
            # A figure that could not be taken is part of the result.
            self.figures.failed[name] = f"{type(error).__name__}: {error}"[:2000]
            print(f"   failed: {self.figures.failed[name]}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code("bench_decode", lambda: run(parse(arguments)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="bench_decode", description=__doc__)
    parser.add_argument("family", choices=("glm53", "dsv41"))
    parser.add_argument("--widths", choices=("true", "tiny"), default="true")
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--backend", default="cuda-triton")
    parser.add_argument("--dtype", default="", help="as `tensorfold serve` takes it")
    parser.add_argument("--eager", action="store_true", help="nothing compiled or captured")
    parser.add_argument("--no-compile", action="store_true", help="captured, not compiled")
    parser.add_argument(
        "--streams", type=numbers, default="1,2,4,8,16,32", help="streams of a round"
    )
    parser.add_argument("--context", type=int, default=512, help="rows before those rounds")
    parser.add_argument("--prompts", type=numbers, default="2048,8192", help="rows of prompts")
    parser.add_argument("--long", type=int, default=131072, help="rows of one long prompt; 0: none")
    parser.add_argument("--chunk", type=positive, default=8192, help="rows of a prompt's forward")
    parser.add_argument("--reps", type=positive, default=30)
    parser.add_argument("--free", action="store_true", help="price of exactness")
    parser.add_argument("--peer", action="store_true", help="transformers in the same run")
    parser.add_argument("--peer-seconds", type=seconds, default=240)
    parser.add_argument("--bursts", action="store_true", help="8 short prompts over HTTP")
    parser.add_argument(
        "--turns", type=positive, default=24, help="turns of bursts at every set of fills"
    )
    parser.add_argument("--profile", action="store_true", help="time by kernel")
    parser.add_argument("--unchecked", action="store_true", help="to debug; told in every output")
    parser.add_argument("--cache-dir", default="", help="folder for compiled artifacts")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    parser.add_argument("--plot", type=Path, help="file for a picture")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    offer = discover().families.get(options.family)
    if offer is None:
        raise StartError(f"there is no family {options.family}")
    raw = RAW[options.family, options.widths](options.layers)
    bench = Bench(options=options, family=offer.value, raw=raw)
    rows = raw["text_config"].get("engram_num_embeddings")
    if rows:
        released = [widths.ENGRAM_ROWS[layer] for layer in raw["text_config"]["engram_layer_ids"]]
        bench.figures.smaller = f"Engram rows {sum(rows)} of {sum(released)}"
        print(f"   {bench.figures.smaller}", flush=True)
    # The peer has the device for itself.
    if options.peer:
        bench.part("peer", lambda: measure_peer(bench))
    bench.part("engine", lambda: measure(bench))
    if options.free:
        bench.part("library free", lambda: measure_free(bench))
    outcome = outcome_of(bench.figures, options)
    show(outcome, Console() if sys.stdout.isatty() else Console(width=140))
    if options.output is not None:
        options.output.write_text(json.dumps(document(outcome), indent=2) + "\n")
    if options.plot is not None:
        from tensorfold.tools.decode.drawing import save

        save(bench.figures, options, options.plot)
    return 0 if outcome.holds else 1


def opened(bench: Bench, *, free: bool = False) -> TorchEngine:
    options = bench.options
    longest = max(options.long, *options.prompts, options.context)
    grid = bench.family.grid
    flags: dict[str, Any] = {
        "backend": options.backend,
        "dtype": options.dtype,
        "lanes": max(options.streams),
        "context": longest + ROOM,
        "chunk_rows": -(-min(options.chunk, longest) // grid) * grid,
        "window_rows": 1,
        "cache_dir": options.cache_dir,
        "tables": "device",
    }
    if options.eager:
        flags["eager"] = True
    elif options.no_compile:
        flags["compile"] = False
    times = StartTimes(no_progress if options.output is None else told_step)
    engine = engines.opened(
        bench.family,
        bench.raw,
        options.backend,
        read(flags, {}),
        times,
        free=free,
        checked=not options.unchecked,
    )
    times.close()
    bench.figures.starts["library free" if free else "engine"] = dict(times.seconds)
    print("   " + times.words(), flush=True)
    return engine


def told_step(step: str, done: int, total: int) -> None:
    if not done:
        print(f"   {step}", flush=True)


def measure(bench: Bench) -> None:
    figures, options = bench.figures, bench.options
    engine = opened(bench)
    device = engine.storage.table.device
    model: Any = engine.model
    figures.info = engine.info.to_json()
    figures.copy_rate = clocks.copy_rate(device)
    figures.matrix_rate = clocks.matrix_rate(device, model.weights.embed.dtype)
    print(
        f"   copy {figures.copy_rate / 1e12:.3f} TB/s, "
        f"matrix {figures.matrix_rate / 1e12:.1f} TFLOP/s",
        flush=True,
    )
    figures.promises = holds(engine)
    print(f"   promises {figures.promises}", flush=True)
    if not all(figures.promises.values()) and not options.unchecked:
        raise StartError(f"not timed, since a promise does not hold: {figures.promises}")
    floors = Floors(
        family=options.family,
        config=model.config,
        weights=model.weights,
        dtype=engine.info.dtype,
    )
    bench.part("rounds", lambda: measure_rounds(bench, engine, floors))
    if options.profile:
        bench.part("sampled rounds", lambda: profile_sampled(bench, engine))
    bench.part("gaps", lambda: measure_gaps(bench, engine))
    bench.part("prompts", lambda: measure_prompts(bench, engine, floors))
    if options.bursts:
        bench.part("bursts", lambda: measure_bursts(bench, engine))
    if options.long:
        bench.part("long prompt", lambda: measure_long(bench, engine, floors))


def measure_rounds(bench: Bench, engine: TorchEngine, floors: Floors) -> None:
    figures, options = bench.figures, bench.options
    streams = range(max(options.streams))
    lives = [rounds.begun(engine, stream, options.context, ROOM)[0] for stream in streams]
    try:
        for count in options.streams:
            own = lives[:count]
            found = rounds.timed(engine, own, options.reps)
            picks = rounds.picked(engine, own)
            moved = floors.round_bytes(picks, [live.rows for live in own])
            figures.add_round(count, options.context, found, moved, sum(picks))
        # Behind all that is timed: every engine's timed rounds are fed the same tokens.
        for count in sorted({1, 8, 32} & {*options.streams}) if options.profile else ():
            own = lives[:count]
            profiled = kernels(lambda own=own: repeated(engine, own))  # type: ignore[misc]
            figures.profiles[f"10 rounds of {count}"] = profiled
    finally:
        closed(engine, lives)


def profile_sampled(bench: Bench, engine: TorchEngine) -> None:
    """What noise, cuts and log-probabilities add to the kernels of a round."""
    options, how = bench.options, gaps.HOWS[gaps.SAMPLED]
    with gaps.sharper(engine):
        for count in sorted({1, 8} & {*options.streams}):
            lives = gaps.begun(engine, count, options.context, ROOM, how)
            try:
                # The first ones warm up.
                repeated(engine, lives)
                profiled = kernels(lambda lives=lives: repeated(engine, lives))  # type: ignore[misc]
                bench.figures.profiles[f"10 rounds of {count}, {gaps.SAMPLED}"] = profiled
            finally:
                closed(engine, lives)


def measure_gaps(bench: Bench, engine: TorchEngine) -> None:
    options = bench.options
    for count in sorted(GAP_BARS.keys() & {*options.streams}):
        for gap in gaps.measured(engine, count, options.context, max(GAPS, options.reps)):
            bench.figures.add_gap(gap)


def repeated(engine: TorchEngine, lives: Sequence[rounds.Live]) -> None:
    for _ in range(10):
        rounds.one_round(engine, lives)


def closed(engine: TorchEngine, lives: Sequence[rounds.Live]) -> None:
    for live in lives:
        engine.close(live.stream)


def measure_prompts(bench: Bench, engine: TorchEngine, floors: Floors) -> None:
    figures, options = bench.figures, bench.options
    for length in options.prompts:
        seconds = []
        for rep in range(4):
            live, spent = rounds.begun(engine, 100 + rep, length, 8)
            engine.close(live.stream)
            seconds.append(spent)
        # The first one warms up.
        figures.add_prompt(length, min(seconds[1:]), floors.prompt_operations(0, length))
        if options.profile:
            figures.profiles[f"prompt of {length}"] = kernels(
                lambda length=length: engine.close(  # type: ignore[misc]
                    rounds.begun(engine, 200, length, 8)[0].stream
                )
            )


def measure_bursts(bench: Bench, engine: TorchEngine) -> None:
    """Served with the small tokenizer of the bundled model, whose tokens alone are made likely."""
    from tensorfold.tools.decode import bursting

    options = bench.options
    if engine.info.lanes < bursting.STREAMS:
        raise StartError(f"bursts are of {bursting.STREAMS} streams, and there are fewer lanes")
    folder = Path(__file__).parents[1] / "families" / "glm53" / "tiny"
    model: Any = engine.model
    with torch.inference_mode():
        model.weights.head[bursting.MOST :].zero_()
    bench.figures.bursts = bursting.served(engine, folder, options.turns)


def measure_long(bench: Bench, engine: TorchEngine, floors: Floors) -> None:
    """One prompt in chunks, its index's share by kernel, and rounds of one row behind it."""
    figures, options = bench.figures, bench.options
    lives: list[rounds.Live] = []
    try:
        # The first one warms up.
        engine.close(rounds.begun(engine, 299, options.long, ROOM)[0].stream)
        live, seconds = rounds.begun(engine, 300, options.long, ROOM)
        lives.append(live)
        figures.add_prompt(options.long, seconds, floors.prompt_operations(0, options.long))
        found = rounds.timed(engine, lives, options.reps)
        picks = rounds.picked(engine, lives)
        moved = floors.round_bytes(picks, [live.rows])
        figures.add_round(1, options.long, found, moved, sum(picks))
        if options.profile:
            figures.profiles[f"10 rounds of 1 at {options.long}"] = kernels(
                lambda: repeated(engine, lives)
            )
        closed(engine, lives)
        lives.clear()
        profiled = kernels(lambda: lives.append(rounds.begun(engine, 301, options.long, ROOM)[0]))
        figures.profiles[f"prompt of {options.long}"] = profiled
        if profiled:
            figures.index_share = share_of(profiled, index_kernels())
    finally:
        closed(engine, lives)


def measure_free(bench: Bench) -> None:
    """The same rounds and prompts with library products free to choose."""
    free_memory()
    options, figures = bench.options, bench.figures
    engine = opened(bench, free=True)
    streams = range(max(options.streams))
    lives = [rounds.begun(engine, stream, options.context, ROOM)[0] for stream in streams]
    for count in options.streams:
        found = rounds.timed(engine, lives[:count], options.reps)
        figures.add_free_round(count, options.context, found.device)
    closed(engine, lives)
    for length in options.prompts:
        spent = []
        for rep in range(4):
            live, seconds = rounds.begun(engine, 100 + rep, length, 8)
            engine.close(live.stream)
            spent.append(seconds)
        figures.add_free_prompt(length, min(spent[1:]))
    figures.free_ops = dict(engine.info.ops)


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure_peer(bench: Bench) -> None:
    options = bench.options
    if options.family != "glm53" or options.widths != "true":
        raise StartError("transformers has no such model at these sizes")
    command = [*own_command("tensorfold.tools.decode.peer")]
    command += ["--layers", str(options.layers)]
    command += ["--rows", ",".join(map(str, options.prompts))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.peer_seconds, check=False
        )
        said, words = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        words = "it took too long"
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if lines:
        bench.figures.add_peer(json.loads(lines[-1]))
    if not lines or "round 8" not in bench.figures.peer:
        raise StartError(f"the peer did not come to its end: {words.strip()[-500:]}")


if __name__ == "__main__":
    sys.exit(main())
