"""Window rows among window rows: a row's logits do not depend on how many there are, nor on whose.

The reference of every row is the same token run in a round of its own, alone on the machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine.batch import Run, width_of, widths
from tensorfold.core.engine.contract_check import poisoned
from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.state import Seat
from tensorfold.core.engine.torch_engine import TorchEngine
from tests.cpu.driving import claim, forward, same_state, some_tokens

# Prompt lengths of eight streams: before and behind where keys are dropped, around the grid, and
# in every bucket of visible tokens.
LENGTHS = (3, 17, 18, 63, 64, 65, 131, 290)
LONGEST = 14


@dataclass(kw_only=True)
class Crowd:
    """Eight streams behind their prompts, the rows to come and what each gives alone."""

    engine: TorchEngine
    seats: list[Seat]
    prompts: list[list[int]]
    coming: list[list[int]]
    buffers: dict[str, Tensor]
    logits: list[Tensor]
    states: list[list[dict[str, Tensor]]]

    @torch.inference_mode()
    def restore(self) -> None:
        for name, buffer in self.engine.storage.buffers.items():
            buffer.copy_(self.buffers[name])

    def check(self, widths: list[tuple[int, int]]) -> None:
        """One round of windows (stream, rows) against the rows' own rounds."""
        self.restore()
        runs = [
            Run(self.coming[who][:rows], self.seats[who].lane, LENGTHS[who]) for who, rows in widths
        ]
        ran = forward(self.engine, runs, prompt=False)
        for (who, rows), logits in zip(widths, ran.logits, strict=True):
            assert torch.equal(logits, self.logits[who][:rows]), (who, rows, widths)
            after = stream_state(self.engine.storage, self.seats[who], LENGTHS[who] + rows)
            assert same_state(after, self.states[who][rows]), (who, rows, widths)


def crowd_of(engine: TorchEngine) -> Iterator[Crowd]:
    seats = [claim(engine, engine.info.context) for _ in LENGTHS]
    prompts = [some_tokens(length, seed=length) for length in LENGTHS]
    coming = [some_tokens(LONGEST, seed=1000 + length) for length in LENGTHS]
    for seat, prompt in zip(seats, prompts, strict=True):
        forward(engine, [Run(prompt, seat.lane, 0)], prompt=True)
    buffers = {name: buffer.clone() for name, buffer in engine.storage.buffers.items()}
    logits, states = [], []
    for who, seat in enumerate(seats):
        own, after = [], [stream_state(engine.storage, seat, LENGTHS[who])]
        for place, token in enumerate(coming[who]):
            run = Run([token], seat.lane, LENGTHS[who] + place)
            own.append(forward(engine, [run], prompt=False).logits[0])
            after.append(stream_state(engine.storage, seat, LENGTHS[who] + place + 1))
        logits.append(torch.cat(own))
        states.append(after)
    yield Crowd(
        engine=engine,
        seats=seats,
        prompts=prompts,
        coming=coming,
        buffers=buffers,
        logits=logits,
        states=states,
    )
    for seat in seats:
        engine.storage.release(seat)


@pytest.fixture(scope="module")
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd]:
    yield from crowd_of(request.getfixturevalue(request.param))


EVERY = pytest.mark.parametrize("crowd", ["shared_engine", "saturated", "wide"], indirect=True)
GOLDEN = pytest.mark.parametrize("crowd", ["shared_engine"], indirect=True)


def shared_out(rows: int, generator: random.Random) -> list[tuple[int, int]]:
    """Windows of any widths over some of the streams, in any order, `rows` together."""
    least = -(-rows // LONGEST)
    streams = generator.sample(range(len(LENGTHS)), generator.randint(least, min(8, rows)))
    counts = [1] * len(streams)
    for _ in range(rows - len(streams)):
        open_ones = [place for place, count in enumerate(counts) if count < LONGEST]
        counts[generator.choice(open_ones)] += 1
    return list(zip(streams, counts, strict=True))


def test_the_crowd_stands_in_every_bucket_of_visible_tokens(
    shared_engine: TorchEngine,
) -> None:
    context = shared_engine.info.context
    reached = {width_of(length + LONGEST, context) for length in LENGTHS}
    assert reached == set(widths(context))


@EVERY
def test_a_row_has_its_bits_at_every_number_of_rows_from_1_to_70(crowd: Crowd) -> None:
    generator = random.Random(5)
    for rows in range(1, 71):
        crowd.check(shared_out(rows, generator))


@GOLDEN
def test_a_window_of_every_width_equals_one_row_rounds(crowd: Crowd) -> None:
    for who in range(len(LENGTHS)):
        for rows in range(1, 9):
            crowd.check([(who, rows)])


@EVERY
def test_eight_streams_with_windows_of_every_width_keep_their_bits(crowd: Crowd) -> None:
    for rows in range(1, 9):
        crowd.check([(who, rows) for who in range(len(LENGTHS))])
    crowd.check([(who, 1 + (3 * who) % 8) for who in reversed(range(len(LENGTHS)))])


@GOLDEN
def test_uninitialised_memory_reaches_no_window_row(crowd: Crowd) -> None:
    with poisoned():
        crowd.check([(who, 1 + (3 * who) % 8) for who in range(len(LENGTHS))])
        crowd.check([(0, 1)])
