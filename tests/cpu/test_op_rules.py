"""Rules of single ops that a row sweep cannot show: blocks, bounds, and ties to the lowest."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.ops import kda_blocks, pick_tokens, route
from tensorfold.core.ops.kda_blocks import BLOCK
from tensorfold.core.ops.kda_steps import unit

FORMS = pytest.mark.parametrize("form", range(3))
HEADS, SIZE = 3, 16


def blocks_call(form: int, *args: Any) -> Tensor:
    return candidates()["kda_blocks"][form].call(*args)


def kda_rows(count: int, gate: float | None, seed: int = 0) -> list[Tensor]:
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


def in_blocks(count: int, first: int = 0, past: int | None = None) -> Tensor:
    """rows_NT of consecutive rows; `past` marks missing rows."""
    place = torch.arange(-(-count // BLOCK) * BLOCK)
    missing = count if past is None else past
    return torch.where(place < count, first + place, missing).view(-1, BLOCK)


def run_blocks(form: int, rows: list[Tensor], state: Tensor, lane: int = 0) -> Tensor:
    index = in_blocks(len(rows[0]))
    return blocks_call(form, *rows, index, torch.full((len(index),), lane), state)


def start(lanes: int = 1, seed: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(lanes, HEADS, SIZE, SIZE, generator=generator)


@FORMS
@pytest.mark.parametrize("gate", [None, -5.0, 0.0])
def test_rows_cut_at_block_ends_equal_the_rows_whole(form: int, gate: float | None) -> None:
    rows = kda_rows(200, gate)
    whole_state, cut_state = start(), start()
    whole = run_blocks(form, rows, whole_state)
    cuts = [0, 64, 128, 192, 200]
    parts = [
        run_blocks(form, [part[a:b] for part in rows], cut_state)
        for a, b in itertools.pairwise(cuts)
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(cut_state, whole_state)


@FORMS
@pytest.mark.parametrize("gate", [None, -5.0, 0.0])
def test_a_short_last_block_gives_its_rows_the_bits_of_a_full_one(
    form: int, gate: float | None
) -> None:
    rows = kda_rows(128, gate)
    whole = run_blocks(form, rows, start())
    for count in (1, 2, 15, 16, 17, 31, 33, 48, 63, 65, 80, 81, 127):
        found = run_blocks(form, [part[:count] for part in rows], start())
        assert torch.equal(found, whole[:count]), count


@FORMS
@pytest.mark.parametrize("gate", [None, -5.0, 0.0])
@pytest.mark.parametrize("count", [1, 17, 64, 150])
def test_blocks_equal_the_recurrence_within_budget_and_stay_finite(
    form: int, gate: float | None, count: int
) -> None:
    rows = kda_rows(count, gate)
    state, wanted_state = start(), start().double()
    found = run_blocks(form, rows, state)
    index = in_blocks(count)
    wanted = kda_blocks.reference(
        *(part.double() for part in rows), index, torch.zeros(len(index)).long(), wanted_state
    )
    assert bool(torch.isfinite(found).all())
    assert bool(torch.isfinite(state).all())
    assert float((found - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())
    assert float((state - wanted_state).abs().max()) <= 1e-5 * max(
        float(wanted_state.abs().max()), 1.0
    )


@FORMS
def test_lanes_in_one_call_equal_a_call_each_and_no_other_lane_is_written(form: int) -> None:
    first, second = kda_rows(70, None, seed=1), kda_rows(129, -5.0, seed=2)
    both = [torch.cat(pair) for pair in zip(first, second, strict=True)]
    index = torch.cat([in_blocks(70, past=199), in_blocks(129, first=70, past=199)])
    lanes = torch.tensor([4, 4, 1, 1, 1])
    state, apart = start(6), start(6)
    found = blocks_call(form, *both, index, lanes, state)
    assert torch.equal(found[:70], run_blocks(form, first, apart, lane=4))
    assert torch.equal(found[70:], run_blocks(form, second, apart, lane=1))
    assert torch.equal(state, apart)
    for lane in (0, 2, 3, 5):
        assert torch.equal(state[lane], start(6)[lane])


@FORMS
def test_rows_of_no_block_are_zero(form: int) -> None:
    rows = kda_rows(72, None)
    index = in_blocks(64, past=72)
    found = blocks_call(form, *rows, index, torch.tensor([0]), start())
    assert torch.equal(found[64:], torch.zeros(8, HEADS, SIZE))


def steps_call(form: int, *args: Any) -> Tensor:
    return candidates()["kda_steps"][form].call(*args)


@FORMS
def test_a_window_run_for_its_outputs_and_again_with_its_count_is_its_rows_one_by_one(
    form: int,
) -> None:
    streams, width = 5, 4
    rows = [part.unflatten(0, (streams, width)) for part in kda_rows(streams * width, None)]
    lanes, counts = torch.tensor([3, 6, 1, 4, 0]), torch.tensor([0, 4, 1, 3, 2])
    state, before = start(7), start(7)
    found = steps_call(form, *rows, lanes, torch.zeros_like(counts), state)
    assert torch.equal(state, before)
    assert torch.equal(steps_call(form, *rows, lanes, counts, state), found)
    for stream, (lane, count) in enumerate(zip(lanes, counts, strict=True)):
        serial = start(7)
        for place in range(width):
            one = [part[stream : stream + 1, place : place + 1] for part in rows]
            if place == int(count):
                assert torch.equal(state[lane], serial[lane])
            out = steps_call(form, *one, lane[None], torch.tensor([1]), serial)
            assert torch.equal(out[0, 0], found[stream, place])
        if int(count) == width:
            assert torch.equal(state[lane], serial[lane])
    for lane in (2, 3, 5):
        assert torch.equal(state[lane], before[lane])


def picked(form: int, q: Tensor, weight: Tensor, pools: Tensor, position: list[int]) -> list[Any]:
    """Lists over one lane of two pages, four tokens a pool, the best three pools kept."""
    args = {
        "table_LP": torch.tensor([[1, 0]]),
        "lane_R": torch.zeros(len(position)).long(),
        "position_R": torch.tensor(position),
        "top": 3,
        "pool": 4,
        "page": 64,
        "width": 128,
    }
    call = candidates()["pick_tokens"][form].call
    assert torch.equal(
        call(q, weight, pools, *args.values()),
        pick_tokens.reference(q, weight, pools, *args.values()),
    )
    return [
        [token for token in row if token >= 0]
        for row in call(q, weight, pools, *args.values()).tolist()
    ]


@FORMS
def test_equal_scores_keep_the_lowest_pools_and_the_open_pools_tail(form: int) -> None:
    positions = [0, 2, 3, 10, 11, 12, 15, 16, 63, 64, 126, 127]
    rows = len(positions)
    for weight in (torch.ones(rows, 2), torch.zeros(rows, 2), -torch.ones(rows, 2)):
        q, pools = torch.zeros(rows, 2, 8), torch.randn(32, 8)
        for row, position in zip(picked(form, q, weight, pools, positions), positions, strict=True):
            seen = position + 1
            wanted = [*range(min(seen // 4 * 4, 12)), *range(seen // 4 * 4, seen)]
            assert row == wanted, position


@FORMS
def test_a_tie_at_the_cut_goes_to_the_lowest_pool_behind_the_better_ones(form: int) -> None:
    pools = torch.zeros(32, 8)
    pools[16:32, 0] = torch.tensor([1.0, 2, 1, 3, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 9])
    q, weight = torch.zeros(1, 1, 8), torch.ones(1, 1)
    q[0, 0, 0] = 1.0
    # 32 tokens are visible: pools 0 to 7 of the first page (buffer page 1).
    assert picked(form, q, weight, pools, [31]) == [[4, 5, 6, 7, 12, 13, 14, 15, 24, 25, 26, 27]]
    pools[22, 0] = 1.0  # pool 6 ties with 0, 2, 4, 5 at the cut: pool 0 is kept
    assert picked(form, q, weight, pools, [31]) == [[0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15]]


@FORMS
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_pools_that_a_row_cannot_see_do_not_reach_its_list(form: int, bad: float) -> None:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(4, 2, 8, generator=generator)
    weight = torch.randn(4, 2, generator=generator)
    pools = torch.randn(32, 8, generator=generator)
    positions = [3, 20, 31, 62]
    wanted = picked(form, q, weight, pools, positions)
    pools[16 + 15 :] = bad  # the last pool of the first page
    pools[:16] = bad  # the second page
    assert picked(form, q, weight, pools, positions) == wanted


def test_equal_experts_go_to_the_lowest_ids_in_ascending_order() -> None:
    (only,) = candidates()["route"]
    logits = torch.zeros(3, 12)
    logits[1, 5] = 2.0
    logits[2, 3:] = 1.0
    ids, weights = only.call(logits, torch.zeros(12), 4, 2.5, True)
    assert ids.tolist() == [[0, 1, 2, 3], [0, 1, 2, 5], [3, 4, 5, 6]]
    wanted_ids, wanted = route.reference(logits.double(), torch.zeros(12).double(), 4, 2.5, True)
    assert torch.equal(ids, wanted_ids)
    assert torch.allclose(weights.double(), wanted, rtol=1e-6, atol=0)


def test_the_bias_chooses_experts_and_does_not_weigh_them() -> None:
    (only,) = candidates()["route"]
    bias = torch.zeros(12)
    bias[7] = 5.0
    ids, weights = only.call(torch.zeros(1, 12), bias, 2, 1.0, True)
    assert ids.tolist() == [[0, 7]]
    assert weights.tolist() == [[0.5, 0.5]]


@FORMS
def test_few_rows_and_many_rows_run_their_experts_to_the_same_bits(form: int) -> None:
    call = candidates()["experts"][form].call
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(100, 64, generator=generator)
    ids = torch.rand(100, 16, generator=generator).argsort(-1)[:, :4].sort(-1).values
    weight = torch.rand(100, 4, generator=generator)
    gate_up = torch.randn(16, 64, 64, generator=generator) / 8
    down = torch.randn(16, 32, 64, generator=generator) / 6
    rest = (gate_up, down, 1.0, 0, 8)
    whole = call(x, ids, weight, *rest)
    for first, last in ((0, 1), (3, 7), (0, 31), (0, 32), (0, 33), (60, 100)):
        here = slice(first, last)
        assert torch.equal(call(x[here], ids[here], weight[here], *rest), whole[here])
