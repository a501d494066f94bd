"""How much a scenario simulates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """`prompts` bursts are averaged for a figure; `streams` arrive where arrivals are random;
    `rows` is the length of the long prompt beside a short one."""

    prompts: int = 24
    streams: int = 2000
    rows: int = 600_104


SMALL = Sizes(prompts=2, streams=60, rows=20_000)
