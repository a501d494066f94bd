"""What rounds cost by their rows: timed by the engine at its start, refined by the host's clock.

Everything is in milliseconds of the engine's own table; `pace` is how many real ones pass for one
of those now, so a machine that slows down as a whole changes no choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tensorfold.core.engine_api import Info

# How far one round moves the pace, and what is known of its own row count. A round that asks for no
# drafts is surprising by the machine first: most of it goes to the pace, which concerns no choice.
# One that asks is so by its drafting, if the pace is known of just before.
PACE_SHARE = 0.3
ROWS_SHARE = 0.02
# What drafting takes is the lower third of what it took of late: whatever else runs only adds.
LEAST_SEEN, MOST_SEEN = 3, 8
# Rounds behind one that asked for no drafts in which its pace is still the machine's.
BESIDE = 4
# How far off a round may be that is believed.
MOST_OFF = 2.0
# What was timed at the start is at most so wrong.
MOST_DRIFT = 3.0


class Costs:
    """`rows[n]` is a round of n rows, empty where the engine gives no table; `drafting[s]` what
    asking the engine for drafts of s streams adds. `since_plain` counts the rounds since one that
    asked for none, of which alone the pace is known; `seen[s]` holds what asking for s streams
    added of late."""

    def __init__(self, info: Info) -> None:
        self.pace = 1.0
        self.since_plain = BESIDE
        self.rows = stepped(info.round_costs, info.round_rows)
        self.timed = list(self.rows)
        self.first = first_rows(info.round_costs, info.round_rows)
        self.drafting = sloped(info.draft_costs, info.lanes)
        self.seen = [deque[float](maxlen=MOST_SEEN) for _ in self.drafting]

    def measured(self, rows: int, asking: int, seconds: float) -> None:
        """A round of so many rows that asked for drafts of `asking` streams took that long."""
        if not self.rows or seconds <= 0:
            return
        guess = self.rows[rows] + self.drafting[asking]
        if asking:
            self.since_plain += 1
            if self.since_plain > BESIDE:
                return
            taken = within(seconds * 1000 / self.pace, guess, MOST_OFF)
            seen = self.seen[asking]
            seen.append(max(0.0, taken - self.rows[rows]))
            if len(seen) >= LEAST_SEEN:
                self.drafting[asking] = sorted(seen)[len(seen) // 3]
            return
        self.since_plain = 0
        ratio = within(seconds * 1000 / guess, self.pace, MOST_OFF)
        self.pace += PACE_SHARE * (ratio - self.pace)
        taken = within(seconds * 1000 / self.pace, guess, MOST_OFF)
        moved = self.rows[rows] + ROWS_SHARE * (taken - guess)
        moved = within(moved, self.timed[rows], MOST_DRIFT)
        # A larger round never counts as cheaper than a smaller one.
        first, last = self.first[rows]
        low = self.rows[first - 1]
        high = self.rows[last + 1] if last + 1 < len(self.rows) else moved
        self.rows[first : last + 1] = [min(max(moved, low), high)] * (last + 1 - first)


def within(value: float, middle: float, factor: float) -> float:
    return min(max(value, middle / factor), middle * factor)


def stepped(table: Sequence[tuple[int, float]], most: int) -> list[float]:
    """Costs of 0 to `most` rows: each that of the next row count in the table."""
    if not table:
        return []
    costs: list[float] = [0.0]
    for rows, cost in table:
        costs += [max(cost, costs[-1])] * (min(rows, most) + 1 - len(costs))
    return costs + [costs[-1]] * (most + 1 - len(costs))


def first_rows(table: Sequence[tuple[int, float]], most: int) -> list[tuple[int, int]]:
    """The first and last row count that cost what each does; 0 rows for themselves."""
    found = [(0, 0)]
    for rows, _ in table:
        first, last = len(found), min(rows, most)
        found += [(first, last)] * (last + 1 - first)
    if len(found) <= most:
        found += [(len(found), most)] * (most + 1 - len(found))
    return found


def sloped(table: Sequence[tuple[int, float]], most: int) -> list[float]:
    """Costs of 0 to `most` streams, on straight lines between those in the table."""
    points = [(0, 0.0), *table]
    costs = []
    for streams in range(most + 1):
        after = next((point for point in points if point[0] >= streams), points[-1])
        before = [point for point in points if point[0] <= streams][-1]
        span = after[0] - before[0]
        share = (streams - before[0]) / span if span > 0 else 0.0
        costs.append(before[1] + share * (after[1] - before[1]))
    return costs
