"""Candidate rows for the preset `smooth`: what a burst gains, and what a live stream pays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorfold.tools.sim.arms import MANY, SMOOTH
from tensorfold.tools.sim.arrivals import SHORT_ROWS, Mix, poisson_story, waits
from tensorfold.tools.sim.costs import Costs, fitted
from tensorfold.tools.sim.figures import beginning, gaps, longest_gap, quantile
from tensorfold.tools.sim.report import Cell, Check, Outcome, Panel, Table
from tensorfold.tools.sim.sizes import Sizes
from tensorfold.tools.sim.world import Story, World, faithful, job_of

DECODER = 100
BURST = 7
LENGTHS = (64, 256, 512)
CLUMPS = Mix(rate=0.2, clump=8, classes=((0.9, 32, SHORT_ROWS), (0.1, 2048, 8192)), tokens=(16, 64))
# CUT_IN, DRAIN and PACK, in rows.
CANDIDATES = (
    (0, 0, 0),
    (512, 0, 0),
    (512, 512, 512),
    (512, 1024, 0),
    (512, 1024, 512),
    (512, 1024, 1024),
    (512, 2048, 1024),
    (512, 2048, 2048),
    (512, 4096, 2048),
    (512, 4096, 4096),
    (0, 1024, 1024),
    (128, 1024, 1024),
)


def burst_beside(arm: Mapping[str, Any], costs: Costs, rows: int) -> Story:
    """Prompts that come together while another stream decodes."""
    world = World(arm, costs)
    world.arrive(0.0, job_of(DECODER, 16, 400))
    world.arrive(1.0, *(job_of(stream, rows, 32) for stream in range(BURST)))
    return world.run()


def presets(sizes: Sizes) -> Outcome:
    costs = fitted()
    arms: list[tuple[tuple[Cell, ...], Mapping[str, Any]]] = [
        (
            ("-", *values),
            {**MANY, **dict(zip(("fill_cut_in", "fill_drain", "fill_pack"), values, strict=True))},
        )
        for values in CANDIDATES
    ]
    info = World(SMOOTH, costs).host.info
    arms.append((("smooth", info.fill_cut_in, info.fill_drain, info.fill_pack), SMOOTH))
    rows: list[tuple[Cell, ...]] = []
    checks: list[Check] = []
    for cells, arm in arms:
        firsts, pauses = [], []
        for length in LENGTHS:
            story = burst_beside(arm, costs, length)
            firsts.append(max(story.seen(stream).waited for stream in range(BURST)))
            pauses.append(max(gaps(story.seen(DECODER))))
        clumps = poisson_story(arm, costs, mix=CLUMPS, streams=max(1, sizes.streams // 4))
        holds = faithful(clumps)
        checks.append(Check(name=f"replies are whole ({cells})", holds=holds, found=str(holds)))
        short = waits(clumps, most_rows=SHORT_ROWS)
        ends = (quantile(short, 0.5), quantile(short, 0.9), longest_gap(clumps))
        rows.append((*cells, *firsts, *pauses, *ends))
    return Outcome(
        scenario="presets",
        tables=(
            Table(
                title="CHUNKS 1, MANY, ROUNDS 1 with CUT_IN, DRAIN and PACK in rows",
                columns=(
                    *("arm", "CUT_IN", "DRAIN", "PACK"),
                    *(f"first s, {length} rows" for length in LENGTHS),
                    *(f"gap s, {length} rows" for length in LENGTHS),
                    *("clumps: first p50 s", "first p90 s", "longest gap s"),
                ),
                rows=tuple(rows),
                note=(
                    f"First: the slowest first token of {BURST} prompts of so many rows that come "
                    "together beside a decoder. Gap: the decoder's longest pause meanwhile. "
                    f"Clumps: 1 to {CLUMPS.clump} prompts together at random, first tokens of "
                    f"those of at most {SHORT_ROWS} rows."
                ),
            ),
        ),
        checks=tuple(checks),
        panels=(
            Panel(
                title=f"{BURST} of 256 rows beside a decoder, smooth",
                turns=beginning(burst_beside(SMOOTH, costs, 256), 3.0),
            ),
        ),
    )
