"""Faults of scheduling that engines of this kind have had, rebuilt over the fake: none is ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from tensorfold.core.engine_api import Info
from tensorfold.core.lane_host.fills import NextFill, Pass, SoFar, Step, next_fill
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.lanes import Lanes
from tensorfold.tools.sim import world
from tensorfold.tools.sim.fault_cases import Finding
from tensorfold.tools.sim.faults import FAULTS, Fault
from tensorfold.tools.sim.sizes import Sizes

SIZES = Sizes(prompts=1, streams=60, rows=6_000)
RUNS = {fault.number: fault.run for fault in FAULTS}
# What virtual time cannot tell: costs of long contexts, and states that are kept.
UNTOLD = {11, 13}


def missed(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.holds is False]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number}, {fault.kind}")
def test_what_must_hold_holds(fault: Fault) -> None:
    findings = fault.run(SIZES)
    assert missed(findings) == []
    judged = [finding for finding in findings if finding.holds]
    assert bool(judged) == (fault.number not in UNTOLD)


def with_fills(**unset: int) -> NextFill:
    """The rule as it is where some settings are others than the engine's."""

    def choose(
        line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
    ) -> Step | None:
        return next_fill(line, live, turn, rounds_since, replace(info, **unset))

    return choose


def cuts_in_again() -> NextFill:
    """The rule as it is where for a while nobody remembers who was overtaken."""
    calls = count()

    def choose(
        line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
    ) -> Step | None:
        if next(calls) < 60:
            line = [replace(entry, overtaken=False) for entry in line]
        return next_fill(line, live, turn, rounds_since, info)

    return choose


def plain() -> NextFill:
    return with_fills(fill_chunks=0)


def in_turn() -> NextFill:
    return with_fills(fill_many=0, fill_cut_in=0, fill_drain=0)


@pytest.mark.parametrize(
    ("number", "make"),
    [
        *((number, plain) for number in (1, 2, 4, 6, 9)),
        *((number, in_turn) for number in (4, 6, 12)),
        (5, cuts_in_again),
    ],
)
def test_a_host_that_has_the_fault_is_told(
    number: int, make: Callable[[], NextFill], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "Host", partial(Host, next_fill=make()))
    assert missed(RUNS[number](SIZES))


def test_a_host_that_lets_everyone_pass_a_waiter_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    admit_one = Lanes.admit_one

    def forgetful(own: Lanes, now: float) -> bool:
        some = admit_one(own, now)
        for waiter in own.queue.first(len(own.queue)):
            waiter.skipped = 0
        return some

    monkeypatch.setattr(Lanes, "admit_one", forgetful)
    assert missed(RUNS[8](SIZES))
