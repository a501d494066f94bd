"""What a scenario gives: tables for people, checks with their bars, and a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tensorfold.core.lane_host.trace import TurnTrace

Cell = str | float | int | bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A property that must hold, with what was found in words."""

    name: str
    holds: bool
    found: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of cells. A boolean is told as ok or NOT OK, none as not asked of this row. People see
    the first `groups` columns once for rows that have them in common."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    groups: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A timeline to draw."""

    title: str
    turns: tuple[TurnTrace, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """`document` is the scenario's own part of the JSON."""

    scenario: str
    tables: tuple[Table, ...]
    checks: tuple[Check, ...]
    document: Mapping[str, Any] = field(default_factory=dict)
    panels: tuple[Panel, ...] = ()

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)


def document(outcome: Outcome) -> dict[str, Any]:
    tables = [
        {
            "title": table.title,
            "note": table.note,
            "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        }
        for table in outcome.tables
    ]
    checks = [
        {"name": check.name, "holds": check.holds, "found": check.found} for check in outcome.checks
    ]
    return {
        "scenario": outcome.scenario,
        **outcome.document,
        "holds": outcome.holds,
        "checks": checks,
        "tables": tables,
    }


def show(outcome: Outcome, console: Console) -> None:
    for table in outcome.tables:
        console.print(drawn(table, outcome.scenario))
        if table.note:
            console.print(Text(table.note, style="dim"))
    summarise(outcome.checks, outcome.scenario, console)
    console.print()


def drawn(table: Table, scenario: str) -> RichTable:
    shown = RichTable(title=f"{scenario}: {table.title}")
    for place, heading in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        numbers = any(isinstance(c, int | float) and not isinstance(c, bool) for c in cells)
        shown.add_column(heading, justify="right" if numbers else "left")
    before: tuple[Cell, ...] = ()
    for row in table.rows:
        common = table.groups if before[: table.groups] == row[: table.groups] else 0
        if before and table.groups and not common:
            shown.add_section()
        shown.add_row(*([""] * common), *map(told, row[common:]))
        before = row
    return shown


def told(cell: Cell) -> Text:
    if cell is None:
        return Text("-")
    if isinstance(cell, bool):
        return Text("ok", style="green") if cell else Text("NOT OK", style="bold red")
    if isinstance(cell, float):
        return Text(number(cell))
    return Text(str(cell))


def number(value: float) -> str:
    """Three figures after the point for small values, none for large ones."""
    size = abs(value)
    return f"{value:.3f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:.0f}"


def summarise(checks: Sequence[Check], scenario: str, console: Console) -> None:
    missed = [check for check in checks if not check.holds]
    for check in missed:
        console.print(Text(f"missed: {check.name}: {check.found}", style="bold red"))
    held = len(checks) - len(missed)
    console.print(Text(f"{scenario}: {held} of {len(checks)} bars hold"))
