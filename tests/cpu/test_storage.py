"""State buffers: what is allocated, and what is told of it."""

from __future__ import annotations

import pytest
import torch

from tensorfold.core.engine.state import Storage, allocate, bytes_needed
from tensorfold.core.state_spec import Fixed, PerToken, Ring, StateSpec

SPEC = StateSpec(
    page=8,
    entries=(
        PerToken(name="rows", width=3, every=2),
        PerToken(name="ids", width=1, dtype="int64"),
        Ring(name="ring", rows=5, width=2),
        Fixed(name="state", shape=(2, 3)),
    ),
)
LANES, CONTEXT = 3, 20
PAGES = LANES * 3
PAGE = SPEC.bytes_per_page()


def stored(kept_bytes: int = 0) -> Storage:
    return allocate(
        SPEC, lanes=LANES, context=CONTEXT, kept_bytes=kept_bytes, device=torch.device("cpu")
    )


@pytest.mark.parametrize("kept_bytes", [0, PAGE - 1, PAGE, 3 * PAGE + 5])
def test_buffers_take_the_bytes_that_a_start_says_it_needs_and_kept_states_theirs(
    kept_bytes: int,
) -> None:
    storage = stored(kept_bytes)
    taken = sum(buffer.nbytes for buffer in storage.buffers.values())
    assert taken == bytes_needed(SPEC, LANES, PAGES) + kept_bytes // PAGE * PAGE
    assert storage.pages == PAGES + kept_bytes // PAGE


def test_all_lanes_hold_whole_contexts_beside_kept_states_in_their_room() -> None:
    storage = stored(kept_bytes=2 * PAGE)
    seat = storage.claim(CONTEXT)
    storage.keep(seat, tuple(range(16)))
    storage.release(seat)
    assert [storage.claim(CONTEXT).lane for _ in range(LANES)] == [0, 1, 2]


def test_the_peak_remembers_a_kept_state_that_was_dropped() -> None:
    storage = stored()
    seat = storage.claim(CONTEXT)
    number, kept = storage.keep(seat, tuple(range(11)))
    most = storage.memory().used
    assert kept.bytes > 0
    storage.drop(number)
    storage.release(seat)
    assert (storage.memory().used, storage.memory().peak) == (0, most)
