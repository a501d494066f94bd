"""Random arrivals of short and long prompts, alone and in clumps."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorfold.core.lane_host.stream import Job
from tensorfold.tools.sim.arms import CUT_IN, DRAIN, MANY, PACK, SMOOTH, UNSET
from tensorfold.tools.sim.costs import WINDOW_ROWS, Costs, fitted
from tensorfold.tools.sim.figures import (
    beginning,
    filled_once,
    gap_bound,
    gaps,
    longest_gap,
    longest_wait,
    most_rows,
    order_kept,
    quantile,
    rows_bound,
    wait_bound,
)
from tensorfold.tools.sim.report import Cell, Check, Outcome, Panel, Table
from tensorfold.tools.sim.sizes import Sizes
from tensorfold.tools.sim.world import Story, World, faithful, job_of

SHORT_ROWS = 256
LEAST_ROWS = 32
DEEPEST_ROWS = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """`rate` arrivals a second of 1 to `clump` requests of a class together; each class is (part of
    them, least rows, most rows); replies have `tokens` tokens, least and most."""

    rate: float
    clump: int = 1
    classes: tuple[tuple[float, int, int], ...]
    tokens: tuple[int, int]


# About half of what the fitted engine can do.
CHATS = Mix(
    rate=0.8,
    classes=((0.8, LEAST_ROWS, SHORT_ROWS), (0.15, SHORT_ROWS, 2048), (0.05, 4096, DEEPEST_ROWS)),
    tokens=(16, 64),
)


def arrivals(mix: Mix, streams: int, seed: int) -> list[tuple[float, Job]]:
    """Poisson arrivals in order, in seconds."""
    source = random.Random(seed)
    at = 0.0
    found: list[tuple[float, Job]] = []
    while len(found) < streams:
        at += source.expovariate(mix.rate)
        (_, least, most) = source.choices(mix.classes, [part for part, _, _ in mix.classes])[0]
        for _ in range(min(source.randint(1, mix.clump), streams - len(found))):
            tokens = source.randint(*mix.tokens)
            found.append((at, job_of(len(found), source.randint(least, most), tokens)))
    return found


def poisson_story(
    arm: Mapping[str, Any], costs: Costs, *, mix: Mix, streams: int, seed: int = 1, **how: Any
) -> Story:
    world = World(arm, costs, **how)
    for at, job in arrivals(mix, streams, seed):
        world.arrive(at, job)
    return world.run()


def bounds(story: Story, *, where: str, shortest: int, context: int) -> list[Check]:
    """What no settled host may show: a live stream or a begun prompt that waits too long, a place
    that is lost, rows that run twice, a token that is another's."""
    info = story.info
    checks = [
        Check(
            name=f"every reply ends whole with its own tokens ({where})",
            holds=faithful(story),
            found=f"{story.stats.finished} finished of {len(story.streams)}",
        ),
        Check(
            name=f"every prompt row goes in once ({where})",
            holds=filled_once(story),
            found=f"{story.stats.filled_rows} rows",
        ),
        Check(
            name=f"first come, first admitted ({where})",
            holds=order_kept(story),
            found="in order" if order_kept(story) else "out of order",
        ),
    ]
    if info.fill_chunks:
        rows, most = most_rows(story), rows_bound(info)
        gap = longest_gap(story)
        longest = gap_bound(info, story.costs, shortest=shortest, context=context)
        checks += [
            Check(
                name=f"rows before a live stream's round are bounded ({where})",
                holds=rows <= most,
                found=f"{rows} of {most}",
            ),
            Check(
                name=f"the gap between two rounds is bounded ({where})",
                holds=gap <= longest,
                found=f"{gap:.3f} s of {longest:.3f} s",
            ),
        ]
    if info.fill_many:
        wait, most = longest_wait(story).rounds, wait_bound(info)
        checks.append(
            Check(
                name=f"rounds before an admitted prompt's next step are bounded ({where})",
                holds=wait <= most,
                found=f"{wait} of {most}",
            )
        )
    return checks


def waits(story: Story, *, most_rows: int) -> list[float]:
    """First-token times of the prompts of at most so many rows, in seconds."""
    return [seen.waited for seen in story.streams if seen.rows <= most_rows]


def arrival_row(name: str, story: Story, holds: bool | None) -> tuple[Cell, ...]:
    everyone = waits(story, most_rows=DEEPEST_ROWS)
    short = waits(story, most_rows=SHORT_ROWS)
    every_gap = [gap for seen in story.streams for gap in gaps(seen)]
    last = max(seen.times[-1] for seen in story.streams)
    return (
        *(name, quantile(short, 0.5), quantile(short, 0.99)),
        *(quantile(everyone, 0.99), quantile(every_gap, 0.99), max(every_gap)),
        *(longest_wait(story).rounds, story.stats.tokens / last, holds),
    )


ARRIVAL_COLUMNS = (
    *("arm", "short first p50 s", "short first p99 s", "first p99 s"),
    *("gap p99 s", "longest gap s", "longest wait, rounds", "tok/s", "bar"),
)


def poisson(sizes: Sizes) -> Outcome:
    costs = fitted()
    arms: dict[str, Mapping[str, Any]] = {
        **{"unset": UNSET, "cut in": CUT_IN, "many": MANY, "drain": DRAIN, "pack": PACK},
        **{"smooth": SMOOTH, "smooth, ROUNDS 3": {**SMOOTH, "fill_rounds": 3}},
    }
    rows, checks, panels = [], [], []
    for name, arm in arms.items():
        story = poisson_story(arm, costs, mix=CHATS, streams=sizes.streams)
        found = bounds(story, where=name, shortest=LEAST_ROWS, context=DEEPEST_ROWS)
        checks += found
        panels.append(Panel(title=f"random arrivals, {name}", turns=beginning(story, 40.0)))
        rows.append(arrival_row(name, story, all(check.holds for check in found)))
    return Outcome(
        scenario="poisson",
        tables=(
            Table(
                title=f"{sizes.streams} streams, {CHATS.rate:g} a second",
                columns=ARRIVAL_COLUMNS,
                rows=tuple(rows),
                note=(
                    f"Prompts: 80 % of {LEAST_ROWS} to {SHORT_ROWS} rows, 15 % up to 2048, 5 % of "
                    f"4096 to {DEEPEST_ROWS}; short ones have at most {SHORT_ROWS} rows. A full "
                    f"round of eight takes {costs.round_ms(8 * WINDOW_ROWS, 8):.0f} ms."
                ),
            ),
        ),
        checks=tuple(checks),
        panels=tuple(panels),
    )
