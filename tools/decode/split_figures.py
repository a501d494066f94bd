"""Figures of a split index: first tokens by arm, rounds beside their floor, and what must hold."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tensorfold.core.index_shares import COST, ROWS
from tensorfold.tools.bench_cache import Row
from tensorfold.tools.decode.figures import profile_table
from tensorfold.tools.sim.report import Check, Outcome, Table

WHOLE = "whole"
ARMS = (WHOLE, ROWS, COST, COST, ROWS, WHOLE)
# How far rounds may be from those beside a whole index.
DRIFT = 0.005


def judged(options: argparse.Namespace, found: Mapping[str, Any]) -> Outcome:
    """Bars and tables of a run. `found` has by length of `prompts` the `rows` of each arm and the
    `index`' part of their kernels' time, by streams of `rounds` the `seconds` of each arm and a
    `floor`, and `profiles` by name."""
    prompts, rounds = found["prompts"], found["rounds"]
    checks = [check for length, own in prompts.items() for check in prompt_checks(length, own)]
    checks += [round_check(count, own["seconds"]) for count, own in rounds.items()]
    profiles = found.get("profiles", {})
    ranks = f"{options.family}, {options.layers} layers, {options.ranks} ranks"
    return Outcome(
        scenario="split",
        tables=(
            *(profile_table(name, each) for name, each in profiles.items() if each),
            Table(
                title=f"{ranks}: cold prompts in chunks of {options.chunk}",
                columns=(
                    "prompt",
                    "first token, s",
                    "range",
                    "against whole",
                    "index",
                    "prefill, s",
                ),
                rows=tuple(
                    line for length, own in prompts.items() for line in prompt_lines(length, own)
                ),
            ),
            Table(
                title=f"{ranks}: ms a round at context {options.context}",
                columns=("rows", WHOLE, ROWS, COST, "floor", "whole / floor"),
                rows=tuple(round_line(count, own) for count, own in rounds.items()),
            ),
        ),
        checks=tuple(checks),
        document={
            **found,
            "prompts": {length: prompt_figures(own) for length, own in prompts.items()},
            "profiles": {
                name: [kernel._asdict() for kernel in each] for name, each in profiles.items()
            },
        },
    )


def prompt_checks(length: int, own: Mapping[str, Any]) -> tuple[Check, Check]:
    rows = [row for each in own["rows"].values() for row in each]
    hashes = {row.sha256 for row in rows}
    good = [row for row in rows if row.failed is None]
    return (
        Check(
            name=f"{length} rows: every arm gives the same tokens",
            holds=len(good) == len(rows) and len(hashes) == 1,
            found=f"{len(hashes)} hashes over {len(good)} of {len(rows)} replies",
        ),
        Check(
            name=f"{length} rows: every prompt is cold and whole",
            holds=bool(good) and {(row.cached, row.prompt) for row in good} == {(0, length)},
            found=", ".join(sorted({f"{row.cached} cached" for row in good})),
        ),
    )


def prompt_figures(own: Mapping[str, Any]) -> dict[str, Any]:
    """Of each arm, for the document: times in seconds, and the index's part of the kernels'."""
    return {
        arm: {
            "ttft_s": times_of(each),
            "prefill_s": prefills_of(each),
            "index": own["index"].get(arm),
        }
        for arm, each in own["rows"].items()
    }


def prompt_lines(length: int, own: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A line of the table an arm that has any time."""
    base = times_of(own["rows"][WHOLE])
    lines: list[tuple[str, ...]] = []
    for arm, each in own["rows"].items():
        times = times_of(each)
        if not times:
            continue
        gain = "" if arm == WHOLE else "unmeasured"
        if base and arm != WHOLE:
            gain = f"{statistics.median(base) / statistics.median(times) - 1:+.2%}"
        share = own["index"].get(arm)
        lines.append(
            (
                f"{length} {arm}",
                f"{statistics.median(times):.4f}",
                f"{min(times):.4f} to {max(times):.4f}",
                gain,
                "unmeasured" if share is None else f"{share:.1%}",
                f"{statistics.median(prefills_of(each)):.4f}",
            )
        )
    return lines


def round_check(count: int, seconds: Mapping[str, Sequence[float]]) -> Check:
    drift = max(map(abs, drifts(seconds).values()))
    return Check(
        name=f"rounds of {count}: no arm is {DRIFT:.1%} from whole",
        holds=drift < DRIFT,
        found=f"{drift:.2%}",
    )


def round_line(count: int, own: Mapping[str, Any]) -> tuple[str, ...]:
    medians = {arm: statistics.median(each) for arm, each in own["seconds"].items() if each}
    floor = own.get("floor")
    return (
        f"{count}",
        *(f"{1e3 * medians[arm]:.3f}" for arm in (WHOLE, ROWS, COST)),
        "unmeasured" if floor is None else f"{1e3 * floor:.3f}",
        "" if floor is None else f"{medians[WHOLE] / floor:.2f}",
    )


def drifts(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """How far each arm's rounds are from those beside a whole index: the median over turns, in
    which every arm has two rounds, one before and one after the other arms'."""
    pairs = {
        arm: [sum(each[at : at + 2]) for at in range(0, len(each), 2)]
        for arm, each in seconds.items()
    }
    return {
        arm: statistics.median(
            one / whole - 1 for one, whole in zip(each, pairs[WHOLE], strict=True)
        )
        for arm, each in pairs.items()
    }


def times_of(rows: Sequence[Row]) -> list[float]:
    return [row.ttft_s for row in rows if row.failed is None]


def prefills_of(rows: Sequence[Row]) -> list[float]:
    """Seconds from each prompt's admission to its first token, by the receipts."""
    return [row.prefill_s for row in rows if row.failed is None]
