"""What `bench_decode` found, and as tables, bars and a document."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tensorfold.tools.decode.bursting import Bursts, beside
from tensorfold.tools.decode.gaps import Gap
from tensorfold.tools.decode.profiling import Kernel
from tensorfold.tools.decode.rounds import Timed
from tensorfold.tools.sim.report import Cell, Check, Outcome, Table

# Kernels of a profile that people see.
SHOWN = 25
# Device time over the floor that rounds of so many streams may take, and prompts over the peer.
ROUND_BARS: Mapping[int, float] = {1: 1.6, 8: 1.6, 32: 1.7}
LONG_BAR, PEER_BAR, PROMPT_BAR = 1.6, 2.0, 0.45
FREE_ROUND_BAR, FREE_PROMPT_BAR = 0.03, 0.08
PACK_BAR, DRAIN_BAR = 0.35, 0.01
GAP_BARS: Mapping[int, float] = {1: 60e-6, 8: 110e-6}


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Seconds; `moved` are the floor's bytes, `experts` the different ones read in all layers."""

    streams: int
    context: int
    device: float
    wall: float
    moved: int
    experts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """`operations` are the floor's."""

    rows: int
    seconds: float
    operations: int


@dataclass(kw_only=True, slots=True)
class Figures:
    """Rates in bytes and operations a second; what was not found is empty or none."""

    info: Mapping[str, Any] = field(default_factory=dict)
    copy_rate: float = 0.0
    matrix_rate: float = 0.0
    promises: Mapping[str, bool] = field(default_factory=dict)
    starts: dict[str, dict[str, float]] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    profiles: dict[str, list[Kernel]] = field(default_factory=dict)
    index_share: float | None = None
    bursts: Mapping[str, Mapping[str, Bursts]] = field(default_factory=dict)
    free_rounds: dict[int, float] = field(default_factory=dict)
    free_prompts: dict[int, float] = field(default_factory=dict)
    free_ops: Mapping[str, str] = field(default_factory=dict)
    peer: Mapping[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    # What the measured model has less of than the released one, in words.
    smaller: str = ""

    def add_round(self, streams: int, context: int, found: Timed, moved: int, experts: int) -> None:
        made = Round(
            streams=streams,
            context=context,
            device=found.device,
            wall=found.wall,
            moved=moved,
            experts=experts,
        )
        self.rounds.append(made)
        print(
            f"   {streams} streams at {context}: {found.device * 1e3:.3f} ms on the device, "
            f"{found.wall * 1e3:.3f} a round, floor {moved / self.copy_rate * 1e3:.3f}",
            flush=True,
        )

    def add_gap(self, gap: Gap) -> None:
        self.gaps.append(gap)
        print(
            f"   {gap.streams} streams, {gap.how}, {gap.over}: {gap.median * 1e6:.1f} us between "
            f"{gap.counted + 1} rounds, the longest {gap.longest * 1e6:.1f}",
            flush=True,
        )

    def add_prompt(self, rows: int, seconds: float, operations: int) -> None:
        self.prompts.append(Prompt(rows=rows, seconds=seconds, operations=operations))
        floor = operations / self.matrix_rate
        print(
            f"   {rows} rows: {seconds * 1e3:.1f} ms, {rows / seconds:.0f} rows/s, "
            f"floor {floor * 1e3:.1f} ms",
            flush=True,
        )

    def add_free_round(self, streams: int, context: int, seconds: float) -> None:
        self.free_rounds[streams] = seconds
        same = (streams, context)
        exact = [one.device for one in self.rounds if (one.streams, one.context) == same]
        self.tell_free(f"{streams} streams: {seconds * 1e3:.3f} ms", seconds, exact)

    def add_free_prompt(self, rows: int, seconds: float) -> None:
        self.free_prompts[rows] = seconds
        exact = [one.seconds for one in self.prompts if one.rows == rows]
        self.tell_free(f"{rows} rows: {seconds * 1e3:.1f} ms", seconds, exact)

    def tell_free(self, words: str, seconds: float, exact: Sequence[float]) -> None:
        """`exact` are the same step's seconds with what the promises need, if it was timed."""
        price = f", exactness {exact[0] / seconds - 1:+.1%}" if exact else ""
        print(f"   free, {words}{price}", flush=True)

    def add_peer(self, found: Mapping[str, Any]) -> None:
        """`prompt N` in rows a second and `round N` in seconds."""
        self.peer = found
        for name, value in found.items():
            what, _, _ = name.partition(" ")
            if what == "prompt":
                print(f"   peer, {name}: {value:.0f} rows/s", flush=True)
            elif what == "round":
                print(f"   peer, {name}: {value * 1e3:.3f} ms", flush=True)

    def floor_of(self, one: Round) -> float:
        return one.moved / self.copy_rate

    def peer_rate(self, rows: int) -> float | None:
        found = self.peer.get(f"prompt {rows}")
        return float(found) if found is not None else None


def outcome_of(figures: Figures, options: argparse.Namespace) -> Outcome:
    tables = [rounds_table(figures), prompts_table(figures), start_table(figures)]
    if figures.gaps:
        tables.append(gaps_table(figures))
    if figures.bursts:
        tables.append(bursts_table(figures))
    tables += [profile_table(name, found) for name, found in figures.profiles.items() if found]
    checks = [
        Check(name=f"promise {name}", holds=held, found="on replies alone and in company")
        for name, held in figures.promises.items()
    ]
    checks += [
        Check(name=f"part {name}", holds=False, found=f"unmeasured: {words}")
        for name, words in figures.failed.items()
    ]
    if options.family == "glm53" and options.widths == "true":
        checks += bars(figures, options.context)
    told = asdict(figures)
    told["profiles"] = {
        name: [kernel._asdict() for kernel in found] for name, found in figures.profiles.items()
    }
    name = f"{options.family}, {options.widths} widths, {options.layers} layers"
    if figures.smaller:
        name += f", {figures.smaller}"
    if options.unchecked:
        name += ", UNCHECKED"
    asked = {key: value for key, value in vars(options).items() if key not in ("output", "plot")}
    return Outcome(
        scenario=name,
        tables=tuple(tables),
        checks=tuple(checks),
        document={"asked": asked, "figures": told},
    )


def rounds_table(figures: Figures) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in figures.rounds:
        floor = figures.floor_of(one)
        free = figures.free_rounds.get(one.streams) if one.context < 8192 else None
        peer = figures.peer.get(f"round {one.streams}") if one.context == 512 else None
        rows.append(
            (
                one.streams,
                one.context,
                one.device * 1e3,
                floor * 1e3,
                one.device / floor,
                one.wall * 1e3,
                one.experts,
                one.moved / 1e9,
                None if free is None else free * 1e3,
                None if free is None else 100 * (one.device / free - 1),
                None if peer is None else peer * 1e3,
            )
        )
    return Table(
        title="rounds of one row a stream",
        columns=(
            "streams",
            "context",
            "device, ms",
            "floor, ms",
            "over floor",
            "in turn, ms",
            "experts read",
            "floor, GB",
            "free, ms",
            "exactness, %",
            "peer, ms",
        ),
        rows=tuple(rows),
        note=f"copy rate {figures.copy_rate / 1e12:.3f} TB/s",
    )


def gaps_table(figures: Figures) -> Table:
    rows = [
        (
            one.streams,
            one.how,
            one.over,
            one.median * 1e6,
            one.longest * 1e6,
            one.device * 1e3,
            one.counted,
        )
        for one in figures.gaps
    ]
    return Table(
        title="from the end of a round on the device to the start of the next",
        columns=("streams", "asked", "driven by", "us", "longest, us", "a round, ms", "gaps"),
        rows=tuple(rows),
        groups=1,
    )


def prompts_table(figures: Figures) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in figures.prompts:
        rate, floor = one.rows / one.seconds, one.operations / figures.matrix_rate
        free, peer = figures.free_prompts.get(one.rows), figures.peer_rate(one.rows)
        rows.append(
            (
                one.rows,
                one.seconds * 1e3,
                rate,
                floor * 1e3,
                100 * floor / one.seconds,
                None if free is None else 100 * (one.seconds / free - 1),
                peer,
                None if peer is None else rate / peer,
            )
        )
    share = figures.index_share
    index = "unmeasured" if share is None else f"{100 * share:.1f} % of the kernels' time"
    return Table(
        title="prompts",
        columns=(
            "rows",
            "ms",
            "rows/s",
            "floor, ms",
            "of floor, %",
            "exactness, %",
            "peer, rows/s",
            "over peer",
        ),
        rows=tuple(rows),
        note=f"matrix rate {figures.matrix_rate / 1e12:.1f} TFLOP/s; the index of the long prompt: "
        + index,
    )


def bursts_table(figures: Figures) -> Table:
    rows = [
        (
            kind,
            arm,
            one.slowest_first * 1e3,
            f"{min(one.firsts) * 1e3:.1f} to {max(one.firsts) * 1e3:.1f}",
            one.aggregate,
            f"{min(one.aggregates):.0f} to {max(one.aggregates):.0f}",
            one.steady,
        )
        for kind in next(iter(figures.bursts.values()))
        for arm, by_kind in figures.bursts.items()
        for one in (by_kind[kind],)
    ]
    return Table(
        title="bursts of 8 short prompts over HTTP",
        columns=(
            "prompts",
            "fills",
            "slowest first token, ms",
            "from to",
            "aggregate, tok/s",
            "from to",
            "steady, tok/s",
        ),
        rows=tuple(rows),
        groups=1,
    )


def start_table(figures: Figures) -> Table:
    rows = [
        (name, step, seconds)
        for name, steps in figures.starts.items()
        for step, seconds in steps.items()
    ]
    return Table(title="starts", columns=("engine", "part", "s"), rows=tuple(rows), groups=1)


def profile_table(name: str, found: Sequence[Kernel]) -> Table:
    whole = sum(kernel.seconds for kernel in found)
    rows = [
        (kernel.name[:80], kernel.runs, kernel.seconds * 1e3, 100 * kernel.seconds / whole)
        for kernel in found[:SHOWN]
    ]
    return Table(
        title=f"kernels of {name}, {whole * 1e3:.2f} ms",
        columns=("kernel", "runs", "ms", "%"),
        rows=tuple(rows),
    )


def bars(figures: Figures, context: int) -> list[Check]:
    """The bounds of rounds and prompts at the released widths, of what was measured."""
    found = []
    for one in figures.rounds:
        over = one.device / figures.floor_of(one)
        near = one.context == context
        most = ROUND_BARS.get(one.streams) if near else LONG_BAR
        if most is not None:
            name = f"{one.streams} streams at {one.context}: at most {most} x the floor"
            found.append(Check(name=name, holds=over <= most, found=f"{over:.2f} x"))
        free = figures.free_rounds.get(one.streams) if near else None
        if free is not None:
            price = one.device / free - 1
            name = f"{one.streams} streams: exactness costs at most {FREE_ROUND_BAR:.0%}"
            found.append(Check(name=name, holds=price <= FREE_ROUND_BAR, found=f"{price:.1%}"))
    for gap in figures.gaps:
        bar = GAP_BARS[gap.streams]
        name = f"{gap.streams} streams, {gap.how}, {gap.over}: "
        name += f"at most {bar * 1e6:.0f} us between rounds"
        found.append(Check(name=name, holds=gap.median <= bar, found=f"{gap.median * 1e6:.0f} us"))
    for prompt in figures.prompts:
        rate = prompt.rows / prompt.seconds
        if prompt.rows == 8192:
            part = prompt.operations / figures.matrix_rate / prompt.seconds
            name = f"{prompt.rows} rows: at least {PROMPT_BAR:.0%} of the floor's speed"
            found.append(Check(name=name, holds=part >= PROMPT_BAR, found=f"{part:.1%}"))
        peer = figures.peer_rate(prompt.rows)
        if peer is not None:
            name = f"{prompt.rows} rows: at least {PEER_BAR} x the peer"
            found.append(
                Check(name=name, holds=rate >= PEER_BAR * peer, found=f"{rate / peer:.2f} x")
            )
        free = figures.free_prompts.get(prompt.rows)
        if free is not None:
            price = prompt.seconds / free - 1
            name = f"{prompt.rows} rows: exactness costs at most {FREE_PROMPT_BAR:.0%}"
            found.append(Check(name=name, holds=price <= FREE_PROMPT_BAR, found=f"{price:.1%}"))
    for kind in next(iter(figures.bursts.values()), {}):
        by_arm = {arm: by_kind[kind] for arm, by_kind in figures.bursts.items()}
        same = len({one.hashes for one in by_arm.values()}) == 1
        name = f"{kind} prompts: every set of fills gives the same tokens"
        found.append(Check(name=name, holds=same, found="by the receipts' hashes"))
        packed = by_arm["pack"].slowest_first / by_arm["unset"].slowest_first
        name = f"{kind} prompts: pack's slowest first token at most {PACK_BAR} x unset's"
        found.append(Check(name=name, holds=packed <= PACK_BAR, found=f"{packed:.2f} x"))
        medians = by_arm["drain"].aggregate / by_arm["unset"].aggregate - 1
        drained = beside(by_arm["drain"], by_arm["unset"])
        name = f"{kind} prompts: drain's aggregate within {DRAIN_BAR:.0%} of unset's"
        told = f"{drained:+.1%} turn by turn, {medians:+.1%} of the medians"
        found.append(Check(name=name, holds=abs(drained) <= DRAIN_BAR, found=told))
    return found
