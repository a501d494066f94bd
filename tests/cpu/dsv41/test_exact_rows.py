"""Window rows among window rows: a row's logits do not depend on their number, nor on whose."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine.batch import Run, width_of, widths
from tensorfold.core.engine.contract_check import poisoned
from tensorfold.core.engine.state import Seat
from tensorfold.core.engine.torch_engine import TorchEngine
from tests.cpu.driving import claim, forward, same_state, some_tokens
from tests.cpu.dsv41.engines import WINDOW_ROWS, state_after

# Prompt lengths of eight streams: open and closed pairs, before and behind where keys are dropped,
# around a page, and in every bucket of visible tokens.
LENGTHS = (1, 4, 7, 18, 63, 64, 131, 290)


@dataclass(kw_only=True)
class Crowd:
    """Eight streams behind their prompts, the rows to come and what each gives alone."""

    engine: TorchEngine
    seats: list[Seat]
    coming: list[list[int]]
    buffers: dict[str, Tensor]
    logits: list[Tensor]
    states: list[list[dict[str, Tensor]]]

    @torch.inference_mode()
    def restore(self) -> None:
        for name, buffer in self.engine.storage.buffers.items():
            buffer.copy_(self.buffers[name])

    def check(self, windows: list[tuple[int, int]]) -> None:
        """One round of windows (stream, rows) against the rows' own rounds."""
        self.restore()
        runs = [
            Run(self.coming[who][:rows], self.seats[who].lane, LENGTHS[who])
            for who, rows in windows
        ]
        ran = forward(self.engine, runs, prompt=False)
        for (who, rows), logits in zip(windows, ran.logits, strict=True):
            assert torch.equal(logits, self.logits[who][:rows]), (who, rows, windows)
            after = state_after(self.engine, self.seats[who], LENGTHS[who] + rows)
            assert same_state(after, self.states[who][rows]), (who, rows, windows)


@pytest.fixture(scope="module")
def crowd(shared: TorchEngine) -> Iterator[Crowd]:
    seats = [claim(shared, shared.info.context) for _ in LENGTHS]
    coming = [some_tokens(WINDOW_ROWS, seed=1000 + length) for length in LENGTHS]
    for seat, length in zip(seats, LENGTHS, strict=True):
        forward(shared, [Run(some_tokens(length, seed=length), seat.lane, 0)], prompt=True)
    buffers = {name: buffer.clone() for name, buffer in shared.storage.buffers.items()}
    logits, states = [], []
    for who, seat in enumerate(seats):
        own, after = [], [state_after(shared, seat, LENGTHS[who])]
        for place, token in enumerate(coming[who]):
            run = Run([token], seat.lane, LENGTHS[who] + place)
            own.append(forward(shared, [run], prompt=False).logits[0])
            after.append(state_after(shared, seat, LENGTHS[who] + place + 1))
        logits.append(torch.cat(own))
        states.append(after)
    yield Crowd(
        engine=shared, seats=seats, coming=coming, buffers=buffers, logits=logits, states=states
    )
    for seat in seats:
        shared.storage.release(seat)


def shared_out(rows: int, generator: random.Random) -> list[tuple[int, int]]:
    """Windows of any widths over some of the streams, in any order, `rows` together."""
    least = -(-rows // WINDOW_ROWS)
    streams = generator.sample(range(len(LENGTHS)), generator.randint(least, min(8, rows)))
    counts = [1] * len(streams)
    for _ in range(rows - len(streams)):
        open_ones = [place for place, count in enumerate(counts) if count < WINDOW_ROWS]
        counts[generator.choice(open_ones)] += 1
    return list(zip(streams, counts, strict=True))


def test_the_crowd_stands_in_every_bucket_of_visible_tokens(shared: TorchEngine) -> None:
    context = shared.info.context
    reached = {width_of(length + WINDOW_ROWS, context) for length in LENGTHS}
    assert reached == set(widths(context))


def test_a_row_has_its_bits_at_every_number_of_rows_from_1_to_70(crowd: Crowd) -> None:
    generator = random.Random(5)
    for rows in range(1, 71):
        crowd.check(shared_out(rows, generator))


def test_a_window_of_every_width_equals_one_row_rounds(crowd: Crowd) -> None:
    for who in range(len(LENGTHS)):
        for rows in range(1, WINDOW_ROWS + 1):
            crowd.check([(who, rows)])


def test_uninitialised_memory_reaches_no_row(crowd: Crowd) -> None:
    with poisoned():
        crowd.check([(who, 1 + (3 * who) % 8) for who in range(len(LENGTHS))])
        crowd.check([(0, 1)])
