"""The recurrence and its block form: right, and the same bits wherever rows are cut or kept."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.kda_blocks import kda_blocks
from tensorfold.backends.cuda_triton.kernels.kda_steps import kda_steps
from tensorfold.backends.cuda_triton.kernels.whole import ALIGNED, in_place, whole
from tensorfold.core.ops import kda_blocks as blocks_op
from tensorfold.core.ops import kda_steps as steps_op
from tensorfold.core.ops.kda_blocks import BLOCK
from tensorfold.core.ops.kda_steps import unit

HEADS, SIZE = 2, 24
GATES = pytest.mark.parametrize("gate", [None, -5.0, 0.0])


def some_rows(count: int, gate: float | None, seed: int = 0) -> list[Tensor]:
    """q, k, v, gate, beta of `count` rows; gates random, or all at one value."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    gates = -5 * torch.rand(count, HEADS, SIZE, generator=generator)
    return [
        unit(normal(count, HEADS, SIZE)) * SIZE**-0.5,
        unit(normal(count, HEADS, SIZE)),
        normal(count, HEADS, SIZE),
        gates if gate is None else torch.full_like(gates, gate),
        torch.rand(count, HEADS, generator=generator),
    ]


def start(lanes: int = 1) -> Tensor:
    return torch.randn(lanes, HEADS, SIZE, SIZE, generator=torch.Generator().manual_seed(9))


def in_blocks(count: int, first: int = 0, past: int | None = None) -> Tensor:
    place = torch.arange(-(-count // BLOCK) * BLOCK)
    return torch.where(place < count, first + place, count if past is None else past).view(
        -1, BLOCK
    )


def run(rows: list[Tensor], state: Tensor, lane: int = 0) -> Tensor:
    index = in_blocks(len(rows[0]))
    return kda_blocks(*rows, index, torch.full((len(index),), lane), state)


def close(found: Tensor, wanted: Tensor, budget: float) -> bool:
    return bool(torch.isfinite(found).all()) and float((found - wanted).abs().max()) <= (
        budget * max(float(wanted.abs().max()), 1.0)
    )


@GATES
def test_blocks_equal_the_recurrence_and_stay_finite(gate: float | None) -> None:
    rows, state, wanted_state = some_rows(100, gate), start(), start().double()
    found = run(rows, state)
    wanted = blocks_op.reference(
        *(part.double() for part in rows), in_blocks(100), torch.zeros(2).long(), wanted_state
    )
    assert close(found, wanted, 1e-5)
    assert close(state, wanted_state, 1e-5)


def test_keys_that_are_all_alike_lose_nothing() -> None:
    """Corrections then cancel one another as far as they can, row after row."""
    rows = some_rows(BLOCK, 0.0)
    rows[1] = rows[1][:1].expand_as(rows[1]).contiguous()
    rows[4] = torch.ones_like(rows[4])
    state, wanted_state = start(), start().double()
    found = run(rows, state)
    wanted = blocks_op.reference(
        *(part.double() for part in rows), in_blocks(BLOCK), torch.zeros(1).long(), wanted_state
    )
    assert close(found, wanted, 1e-5)
    assert close(state, wanted_state, 1e-5)


@GATES
def test_rows_cut_at_block_ends_equal_the_rows_whole(gate: float | None) -> None:
    rows, whole_state, cut_state = some_rows(150, gate), start(), start()
    wanted = run(rows, whole_state)
    parts = [
        run([part[a:b] for part in rows], cut_state)
        for a, b in itertools.pairwise([0, 64, 128, 150])
    ]
    assert torch.equal(torch.cat(parts), wanted)
    assert torch.equal(cut_state, whole_state)


def test_blocks_made_a_few_at_a_time_equal_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorfold.backends.cuda_triton.kernels import kda_blocks as module

    first, second = some_rows(140, None, seed=1), some_rows(70, -5.0, seed=2)
    both = [torch.cat(pair) for pair in zip(first, second, strict=True)]
    index = torch.cat([in_blocks(140, past=210), in_blocks(70, first=140, past=210)])
    lanes = torch.tensor([2, 2, 2, 0, 0])
    whole_state, few_state = start(3), start(3)
    wanted = kda_blocks(*both, index, lanes, whole_state)
    monkeypatch.setattr(module, "SCRATCH", 2 * 4 * HEADS * BLOCK * (3 * 32 + 3 * BLOCK + 16))
    assert torch.equal(kda_blocks(*both, index, lanes, few_state), wanted)
    assert torch.equal(few_state, whole_state)
    alone = start(3)
    assert torch.equal(run(first, alone, lane=2), wanted[:140])
    assert torch.equal(run(second, alone, lane=0), wanted[140:])
    assert torch.equal(alone, whole_state)
    assert torch.equal(whole_state[1], start(3)[1])


@pytest.mark.parametrize("count", [1, 15, 16, 17, 33, 63, 65])
def test_a_short_last_block_gives_its_rows_the_bits_of_a_full_one(count: int) -> None:
    rows = some_rows(128, None)
    wanted = run(rows, start())
    assert torch.equal(run([part[:count] for part in rows], start()), wanted[:count])


def test_values_among_wider_rows_give_what_they_give_alone() -> None:
    rows, state, other = some_rows(70, None), start(), start()
    wanted = run(rows, state)
    among = torch.stack([torch.full_like(rows[2], float("nan")), rows[2]], 1)
    found = run([*rows[:2], among[:, 1], *rows[3:]], other)
    assert not among[:, 1].is_contiguous()
    assert torch.equal(found, wanted)
    assert torch.equal(other, state)


def test_rows_of_no_block_are_zero() -> None:
    index = in_blocks(64, past=72)
    found = kda_blocks(*some_rows(72, None), index, torch.tensor([0]), start())
    assert torch.equal(found[64:], torch.zeros(8, HEADS, SIZE))


def test_a_window_run_for_its_outputs_and_again_with_its_count_is_its_rows_one_by_one() -> None:
    streams, width = 5, 4
    rows = [part.unflatten(0, (streams, width)) for part in some_rows(streams * width, None)]
    lanes, counts = torch.tensor([3, 6, 1, 4, 0]), torch.tensor([0, 4, 1, 3, 2])
    state, before = start(7), start(7)
    found = kda_steps(*rows, lanes, torch.zeros_like(counts), state)
    wanted = steps_op.reference(
        *(part.double() for part in rows), lanes, torch.zeros_like(counts), start(7).double()
    )
    assert close(found, wanted, 1e-6)
    assert torch.equal(state, before)
    assert torch.equal(kda_steps(*rows, lanes, counts, state), found)
    for stream, (lane, count) in enumerate(zip(lanes, counts, strict=True)):
        serial = start(7)
        for place in range(int(count)):
            one = [part[stream : stream + 1, place : place + 1] for part in rows]
            out = kda_steps(*one, lane[None], torch.tensor([1]), serial)
            assert torch.equal(out[0, 0], found[stream, place])
        assert torch.equal(state[lane], serial[lane])
    for lane in (2, 3, 5):
        assert torch.equal(state[lane], before[lane])


def test_what_begins_off_the_grid_of_wide_loads_is_copied_onto_it() -> None:
    """A kernel compiled for such a pointer may sum in another order."""
    room = torch.arange(40.0)
    for x in (room[1:37], room[4:36].view(4, 8).T):
        found = whole(x)
        assert found.data_ptr() % ALIGNED == 0
        assert found.is_contiguous()
        assert torch.equal(found, x)
    assert whole(room[4:36]).data_ptr() == room[4:].data_ptr()
    for written in (room[1:37], room[4:36].view(4, 8).T):
        with pytest.raises(AssertionError):
            in_place(written)
