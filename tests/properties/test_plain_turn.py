"""With no fill set a host runs the plain turn, to the letter: a model of it written by its words.

Each turn takes the cancels; then, before each prompt, admits while a lane is free and the engine
takes one more; every admitted prompt goes in whole, at most as many as there are lanes; then one
round over all live streams. Foreground goes before background, first come first served.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.core.lane_host.host import HostOptions
from tensorfold.core.lane_host.stream import Job
from tests.null.hosting import Rig, job, solo
from tests.properties.examples import CHOSEN

CHUNK = 32
pytestmark = pytest.mark.timeout(3600)


@dataclass
class Plain:
    """`done` says what ran: `P3` is a forward of stream 3's prompt, `R1+2` a round of 1 and 2."""

    lanes: int
    passes: int
    queue: list[Job] = field(default_factory=list)
    line: list[Job] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)  # tokens still to come
    done: list[str] = field(default_factory=list)

    def turn(self, arrivals: list[Job], cancels: set[int]) -> None:
        self.queue = sorted([*self.queue, *arrivals], key=lambda made: made.background)
        self.queue = [made for made in self.queue if made.stream not in cancels]
        self.live = {s: left for s, left in self.live.items() if s not in cancels}
        # A pass can wait over a turn: when the last of its steps freed a lane.
        self.line = [made for made in self.line if made.stream not in cancels]
        for _ in range(self.lanes):
            self.admit()
            if not self.line:
                break
            made = self.line.pop(0)
            self.done += [f"P{made.stream}"] * -(-len(made.prompt) // CHUNK)
            if (left := len(solo(made)) - 1) > 0:
                self.live[made.stream] = left
        else:
            self.admit()
        if self.live:
            self.done.append("R" + "+".join(map(str, self.live)))
        self.live = {stream: left - 1 for stream, left in self.live.items() if left > 1}

    def admit(self) -> None:
        while self.queue and len(self.line) + len(self.live) < self.lanes:
            if self.passes and len(self.line) == self.passes:
                return
            self.line.append(self.queue.pop(0))


ARRIVAL = st.tuples(
    st.one_of(st.integers(1, 10), st.integers(1, 150)),  # rows
    st.integers(1, 8),  # most
    st.booleans(),  # background
    st.booleans(),  # whether some tokens end it
)
TURN = st.tuples(st.lists(ARRIVAL, max_size=5), st.sets(st.integers(1, 40), max_size=2))


@CHOSEN
@given(
    turns=st.lists(TURN, min_size=1, max_size=12),
    lanes=st.integers(1, 5),
    passes=st.sampled_from([0, 1, 2]),
    pack_rows=st.sampled_from([0, 200]),
)
def test_unset_settings_give_exactly_the_plain_turn(
    turns: list[tuple[list[tuple[int, int, bool, bool]], set[int]]],
    lanes: int,
    passes: int,
    pack_rows: int,
) -> None:
    rig = Rig(
        lanes=lanes,
        passes=passes,
        pack_rows=pack_rows,
        chunk_rows=CHUNK,
        options=HostOptions(background_after=1e9),
    )
    plain = Plain(lanes=lanes, passes=passes)
    for arrivals, cancels in turns:
        jobs = [
            job(
                len(rig.jobs) + place,
                rows,
                most,
                background=background,
                end_tokens=frozenset(range(0, 97, 5)) if ends else frozenset(),
            )
            for place, (rows, most, background, ends) in enumerate(arrivals, 1)
        ]
        rig.submit(*jobs)
        for stream in cancels:
            rig.host.cancel(stream)
        rig.host.turn()
        plain.turn(jobs, cancels)
    while rig.host.turn():
        plain.turn([], set())
    plain.turn([], set())
    rig.check()
    done = [
        ("R" if call.kind == "round" else "P") + "+".join(map(str, call.streams))
        for call in rig.calls
        if call.kind in ("fill", "round")
    ]
    assert done == plain.done
