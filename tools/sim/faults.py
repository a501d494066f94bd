"""Faults that engines of this kind have had in their scheduling, each rebuilt over the fake.

A row names the kind, the settings it ran with, what was found, and whether the property that must
hold did. Rows without a verdict show what the settings are there to prevent, or say what virtual
time cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorfold.tools.sim import fault_cases as cases
from tensorfold.tools.sim.arms import CUT_IN
from tensorfold.tools.sim.fault_cases import Finding
from tensorfold.tools.sim.figures import beginning
from tensorfold.tools.sim.report import Check, Outcome, Panel, Table
from tensorfold.tools.sim.sizes import Sizes


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """`number` in the list of known faults, the kind in a few words, and how it is rebuilt."""

    number: int
    kind: str
    run: Callable[[Sizes], list[Finding]]


FAULTS = (
    Fault(number=1, kind="prompts before all else starve live streams", run=cases.prefill_first),
    Fault(number=2, kind="no knob bounds a backlog", run=cases.knobs_bound_a_backlog),
    Fault(number=3, kind="decode and prompt ruin each other", run=cases.decode_and_prompt),
    Fault(number=4, kind="a short request waits for a long prompt", run=cases.short_behind_long),
    Fault(number=5, kind="an overtaken prompt never resumes", run=cases.constant_cut_in),
    Fault(number=6, kind="several short ones wait for a long prompt", run=cases.several_short),
    Fault(number=7, kind="given up and run again in a full pool", run=cases.full_pool),
    Fault(number=8, kind="a waiter loses its place", run=cases.place_in_line),
    Fault(number=9, kind="a long prompt stalls decode", run=cases.decode_stalls),
    Fault(number=11, kind="two long contexts decode slowly", run=cases.long_contexts),
    Fault(number=12, kind="a burst starts out of step", run=cases.burst_out_of_step),
    Fault(number=13, kind="the last of a cycle is never kept", run=cases.cyclic_contexts),
    Fault(number=14, kind="the queue has no end", run=cases.endless_queue),
    Fault(number=15, kind="readers take each other's tokens", run=cases.many_readers),
    Fault(number=16, kind="two prompts overflow the pool", run=cases.overflow),
)


def faults(sizes: Sizes) -> Outcome:
    rows, checks = [], []
    document: list[Mapping[str, Any]] = []
    for fault in FAULTS:
        for finding in fault.run(sizes):
            rows.append(
                (fault.number, fault.kind, finding.arm, finding.must, finding.found, finding.holds)
            )
            document.append({"fault": fault.number, "arm": finding.arm, "holds": finding.holds})
            if finding.holds is not None:
                name = f"{fault.number}, {finding.must} ({finding.arm})"
                checks.append(Check(name=name, holds=finding.holds, found=finding.found))
    return Outcome(
        scenario="faults",
        tables=(
            Table(
                title="faults of scheduling, rebuilt",
                columns=("no.", "kind", "arm", "must hold", "found", "verdict"),
                rows=tuple(rows),
                groups=2,
                note=str(__doc__).split("\n\n")[1].replace("\n", " ").strip(),
            ),
        ),
        checks=tuple(checks),
        document={"faults": document},
        panels=(
            Panel(
                title="four clients that ask again beside a long prompt, cut in",
                turns=beginning(cases.clients_beside_long(CUT_IN, clients=4), 6.0),
            ),
        ),
    )
