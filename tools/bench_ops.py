"""Each op of a backend at the true widths of the released models, beside its floor and its peer.

    python -m tensorfold.tools.bench_ops [--ops NAME,...] [--rows 1,2,...] [--output F] [--plot F]

A floor is bytes over the copy rate or operations over the matrix rate, whichever is longer, both
rates measured in the same run. The peer is torch on the same operands. `plain` is the same op
without the fixed parts or ranges that let ranks share it. Times are medians of replayed graphs that
turn through copies of the weights, so that no cache holds them. An op whose check fails at these
widths is not timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tensorfold.core.backend_api import no_progress
from tensorfold.core.engine.checks import RUNS, outputs, rows_keep_bits
from tensorfold.core.engine.contract_check import FORMATS, error
from tensorfold.core.engine.optable import Call, Candidate
from tensorfold.core.engine.rehearsal import zeroing
from tensorfold.core.errors import StartError
from tensorfold.core.ops import SPECS, Case
from tensorfold.plugins.choose import choose_backend
from tensorfold.plugins.manager import discover
from tensorfold.tools.arguments import Parser, exit_code, numbers
from tensorfold.tools.operands import Args, Maker, Point, moved
from tensorfold.tools.ops_at_width import points

ROWS = (1, 2, 4, 8, 16, 32, 2048, 8192)
SPECS_BY_NAME = {spec.name: spec for spec in SPECS}
# Of weights that a graph turns through, in bytes: several times any cache.
TURNED = 300e6
BUDGET = 2e-5
# Rows of the check of a row's bits, and of the one against the reference.
COMPANY, EXACT = 65, 3
# A list is right or wrong, and near ties fall either way in another format.
LISTS = ("pick_tokens", "pick_rows")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Bytes a second of a large copy, read and write counted; operations of a large product."""

    copy: float
    matrix: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Times in microseconds; none where there is nothing to measure."""

    op: str
    label: str
    rows: int
    ours: float
    floor: float
    peer: float | None
    plain: float | None


def timed(calls: Sequence[Callable[[], Any]], replays: int = 7) -> float:
    """Microseconds a call, from replays of a graph that makes all calls in turn."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    calls[0]()
    end.record()
    torch.cuda.synchronize()
    turns = max(1, min(int(2.0 / max(start.elapsed_time(end), 0.01)), 64) // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(turns):
            for call in calls:
                call()
    times = []
    for _ in range(replays):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[1:]) * 1e3 / (turns * len(calls))


def measure_rates(device: torch.device) -> Rates:
    source = torch.randn(1 << 29, device=device)
    target = torch.empty_like(source)
    # A kernel: a graph hands a plain copy to an engine that is slower.
    doubled = bound(lambda: torch.add(source, source, out=target), ())
    copy = 2 * source.numel() * 4 / timed([doubled]) * 1e6
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    b = torch.randn_like(a)
    return Rates(copy=copy, matrix=2 * 8192.0**3 / timed([bound(torch.mm, (a, b))]) * 1e6)


def unsound(point: Point, candidate: Candidate, maker: Maker) -> str | None:
    """What keeps this op from being timed at these widths; none where its check holds."""
    spec = SPECS_BY_NAME[point.op]
    if not rows_keep_bits(Call(point.op, point.make(maker, COMPANY)), candidate.call):
        return "a row's bits depend on its company"
    if point.op in LISTS:
        return None
    args = used_experts(point, point.make(maker, EXACT))
    names = signature(spec.reference).parameters
    case = Case(name=point.label, args=dict(zip(names, args, strict=True)), rows=())
    off = error(spec, case, candidate.call)
    budget = BUDGET + FORMATS[maker.dtype]
    return None if off <= budget else f"off by {off:.1e}, budget {budget:.1e}"


def used_experts(point: Point, args: Args) -> Args:
    """The same call with the picked experts alone, which fit in memory in float64."""
    if point.op not in ("experts", "experts_weighted"):
        return args
    x, ids, weight, gate_up, down, *rest = args
    used = torch.unique(ids)
    rest[-1] = 1
    return (x, torch.searchsorted(used, ids), weight, gate_up[used], down[used], *rest)


def copies(point: Point, args: Args) -> list[Args]:
    """The operands, and again with copies of the weights."""
    shared = [args[place] for place in point.shared]
    own = sum(one.numel() * one.element_size() for one in shared)
    turned = [args]
    while own and len(turned) * own < TURNED and len(turned) < 64:
        fresh = list(args)
        for place in point.shared:
            fresh[place] = args[place].clone()
        turned.append(tuple(fresh))
    return turned


def bound(call: Callable[..., Any], args: Args) -> Callable[[], Any]:
    return lambda: call(*args)


def measure(point: Point, candidate: Candidate, maker: Maker, rows: int, rates: Rates) -> Figure:
    args = point.make(maker, rows)
    found: tuple[Tensor, ...] = outputs(candidate.call(*args))
    seconds = max(moved(point, args, found) / rates.copy, point.flops(args) / rates.matrix)
    turned = copies(point, args)
    ours = timed([bound(candidate.call, one) for one in turned])
    plain = peer = None
    if point.plain is not None:
        plain = timed([bound(candidate.call, point.plain(one)) for one in turned])
    if point.peer is not None:
        try:
            way = point.peer
            peer = timed([bound(lambda *one: way(one), one) for one in turned])
        except (RuntimeError, AttributeError, NotImplementedError):
            # This torch has no such product, or not for these shapes.
            peer = None
    return Figure(
        op=point.op,
        label=point.label,
        rows=rows,
        ours=ours,
        floor=seconds * 1e6,
        peer=peer,
        plain=plain,
    )


def rehearse(
    candidates: Mapping[str, Sequence[Candidate]],
    maker: Maker,
    chosen: Sequence[Point],
    rows: Sequence[int],
) -> None:
    """The bench's calls, with outputs that are zero."""
    checked = {last - first for first, last in RUNS if last <= COMPANY}
    with torch.inference_mode():
        for point in chosen:
            call = zeroing(candidates[point.op][-1].call)
            for count in sorted({COMPANY, EXACT, *checked, *rows}):
                if count <= point.most:
                    args = point.make(maker, count)
                    call(*args)
                    if point.plain is not None:
                        call(*point.plain(args))
        torch.cuda.empty_cache()


def bench(
    candidates: Mapping[str, Sequence[Candidate]],
    maker: Maker,
    chosen: Sequence[Point],
    rows: Sequence[int],
    rates: Rates,
    tell: Callable[[str], None],
) -> list[Figure]:
    figures = []
    with torch.inference_mode():
        for point in chosen:
            candidate = candidates[point.op][-1]
            why = unsound(point, candidate, maker)
            if why is not None:
                tell(f"NOT TIMED {point.op} {point.label}: {why}")
                continue
            for count in rows:
                if count <= point.most:
                    figures.append(measure(point, candidate, maker, count, rates))
                    tell(line(figures[-1]))
            torch.cuda.empty_cache()
    return figures


def line(f: Figure) -> str:
    parts = [f"{f.op} {f.label} {f.rows}: {f.ours:.1f} us, floor {f.floor:.1f}"]
    parts.append(f"x {f.ours / f.floor:.2f}")
    parts += [f"peer {f.peer:.1f}"] if f.peer is not None else []
    parts += [f"plain {f.plain:.1f}"] if f.plain is not None else []
    return ", ".join(parts)


def show(figures: Sequence[Figure], rates: Rates, title: str) -> Table:
    shown = Table(
        title=f"{title}: copy {rates.copy / 1e12:.2f} TB/s, "
        f"bfloat16 product {rates.matrix / 1e12:.0f} TFLOP/s; microseconds",
    )
    for column in ("op", "at", "rows", "ours", "floor", "x floor", "torch", "plain", "parts cost"):
        shown.add_column(column, justify="left" if column in ("op", "at") else "right")
    for f in figures:
        shown.add_row(
            f.op,
            f.label,
            str(f.rows),
            f"{f.ours:.1f}",
            f"{f.floor:.1f}",
            f"{f.ours / f.floor:.2f}",
            "" if f.peer is None else f"{f.peer:.1f}",
            "" if f.plain is None else f"{f.plain:.1f}",
            "" if f.plain is None else f"{100 * (f.ours / f.plain - 1):+.1f} %",
        )
    return shown


def plot(figures: Sequence[Figure], path: Path, title: str) -> None:
    try:
        import matplotlib
    except ImportError:
        raise StartError("--plot needs matplotlib, which is not installed") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys((f.op, f.label) for f in figures))
    wide = 5
    tall = -(-len(names) // wide)
    sheet, axes = pyplot.subplots(
        tall, wide, figsize=(3.2 * wide, 2.4 * tall), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for axis, name in zip(axes.flat, names, strict=False):
        own = [f for f in figures if (f.op, f.label) == name]
        rows = [f.rows for f in own]
        axis.loglog(rows, [f.ours for f in own], marker="o", label="ours")
        axis.loglog(rows, [f.floor for f in own], linestyle="--", label="floor")
        if all(f.peer is not None for f in own):
            axis.loglog(rows, [f.peer for f in own], marker="x", label="torch")
        axis.set_title(f"{name[0]}, {name[1]}", fontsize=8)
        axis.tick_params(which="both", labelsize=7)
    axes.flat[0].legend(fontsize=7)
    sheet.suptitle(f"{title}; rows against microseconds", fontsize=10)
    sheet.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="bench_ops", description=__doc__)
    parser.add_argument("--ops", default="", metavar="NAMES", help="only these, by comma")
    parser.add_argument("--rows", type=numbers, default=",".join(map(str, ROWS)), metavar="COUNTS")
    parser.add_argument("--dtype", default="bfloat16", choices=[str(d)[6:] for d in FORMATS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE", help="the figures as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a PNG of them")
    return exit_code("bench_ops", lambda: run(parser.parse_args(arguments)))


def run(options: argparse.Namespace) -> int:
    ops = [name for name in options.ops.split(",") if name]
    for name in ops:
        if name not in SPECS_BY_NAME:
            raise StartError(f"--ops names {name!r}; there are {', '.join(SPECS_BY_NAME)}")
    rows: list[int] = options.rows
    choose_backend(discover(), "cuda-triton")
    from tensorfold.backends.cuda_triton.ahead import start_pool
    from tensorfold.backends.cuda_triton.backend import ahead, gpu_of
    from tensorfold.backends.cuda_triton.table import candidates

    start_pool()
    device = gpu_of(None)
    generator = torch.Generator(device).manual_seed(options.seed)
    maker = Maker(device=device, dtype=getattr(torch, options.dtype), generator=generator)
    table = candidates()
    chosen = [one for one in points() if one.op in table and (not ops or one.op in ops)]
    rates = measure_rates(device)
    # Kernels that are compiled one by one would take longer than all that is timed.
    ahead(device, lambda: rehearse(table, maker, chosen, rows), no_progress)
    figures = bench(table, maker, chosen, rows, rates, lambda text: print(text, flush=True))
    title = f"{torch.cuda.get_device_name(device)}, {options.dtype}"
    Console(width=140).print(show(figures, rates, title))
    if options.output:
        told = {
            "device": torch.cuda.get_device_name(device),
            "dtype": options.dtype,
            "seed": options.seed,
            "rates": asdict(rates),
            "figures": [asdict(figure) for figure in figures],
        }
        options.output.write_text(json.dumps(told, indent=1))
    if options.plot:
        plot(figures, options.plot, title)
    return 0 if {(f.op, f.label) for f in figures} == {(p.op, p.label) for p in chosen} else 1


if __name__ == "__main__":
    sys.exit(main())
