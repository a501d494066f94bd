"""What an engine takes of a device's memory: does it fit, and what each rank holds and has left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from tensorfold.core.engine.group import Group
from tensorfold.core.engine.meeting import told
from tensorfold.core.engine.state import Storage, bytes_needed
from tensorfold.core.engine_api import RankBytes
from tensorfold.core.errors import StartError
from tensorfold.core.state_spec import StateSpec


def fit(spec: StateSpec, lanes: int, context: int, kept_bytes: int, free: int) -> None:
    """Refuse lanes and a context whose state does not fit, with the numbers that would."""

    def needed(lanes: int, context: int) -> int:
        return bytes_needed(spec, lanes, lanes * -(-context // spec.page)) + kept_bytes

    if needed(lanes, context) <= free:
        return
    lanes_fit = largest(lambda count: needed(count, context) <= free, lanes)
    pages_fit = largest(lambda pages: needed(lanes, pages * spec.page) <= free, context)
    ways = []
    if lanes_fit:
        ways.append(f"--lanes {lanes_fit}")
    if pages_fit:
        ways.append(f"--context {pages_fit * spec.page}")
    would = " or ".join(ways) + " would fit" if ways else "no number of lanes fits"
    raise StartError(
        f"{lanes} lanes of {context} tokens need {needed(lanes, context):,} bytes of state, and "
        f"{max(free, 0):,} are free beside the weights: {would}"
    )


def largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest count from 0 to `most` that holds, for a condition that ends for good."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def held_by_rank(
    group: Group | None, weight_bytes: int, storage: Storage, free: int
) -> tuple[RankBytes, ...]:
    """What every rank tells of itself, in rank order."""
    state = sum(buffer.nbytes for buffer in storage.buffers.values())
    own = RankBytes(weights=weight_bytes, state=state, free=free)
    if group is None:
        return (own,)
    return tuple(RankBytes(**one) for one in told(group, asdict(own)))
