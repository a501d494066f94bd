"""Round trips through FP8 and FP4: the grids, ties, scales, and values of their own block alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tensorfold.core.ops.rounding import (
    fp4_round,
    fp4_round_fine,
    fp8_round,
    power_above,
    to_fp4,
)

GRID = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def values(rows: int = 200, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 64, generator=generator) * torch.logspace(-6, 4, rows)[:, None]


def nearest_fp4(value: float) -> float:
    """The nearest of the grid; of two as near, the one of the even place."""
    size = abs(value)
    place = min(range(8), key=lambda at: (abs(size - GRID[at]), at % 2))
    return math.copysign(GRID[place], value)


def test_the_power_above() -> None:
    exact = torch.tensor([2.0**n for n in range(-126, 127)])
    assert torch.equal(power_above(exact), exact)
    more = torch.nextafter(exact, torch.tensor(math.inf))
    assert torch.equal(power_above(more), 2 * exact)
    assert torch.equal(power_above(torch.nextafter(2 * exact, torch.zeros(1))), 2 * exact)


def test_fp4_goes_to_the_nearest_and_ties_to_the_even_place() -> None:
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    assert to_fp4(torch.tensor(ties)).tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert to_fp4(torch.tensor([-5.0, -5.1, 100.0, -0.1])).tolist() == [-4, -6, 6, 0]
    many = torch.linspace(-7, 7, 4001)
    assert to_fp4(many).tolist() == [nearest_fp4(float(value)) for value in many]


def test_fp8_of_a_block_written_out() -> None:
    x = values(50)
    for row, found in zip(x, fp8_round(x), strict=True):
        for block, mine in zip(row.split(32), found.split(32), strict=True):
            most = max(float(block.abs().max()), 1e-4)
            scale = 2.0 ** math.ceil(math.log2(most / 448))
            wanted = (block / scale).to(torch.float8_e4m3fn).float() * scale
            assert torch.equal(mine, wanted)


def test_fp4_of_a_block_written_out() -> None:
    x = values(50)
    for row, found in zip(x, fp4_round(x), strict=True):
        for block, mine in zip(row.split(32), found.split(32), strict=True):
            scale = 2.0 ** math.ceil(math.log2(float(block.abs().max()) / 6))
            assert mine.tolist() == [nearest_fp4(float(v) / scale) * scale for v in block]
    for row, found in zip(x, fp4_round_fine(x), strict=True):
        for block, mine in zip(row.split(16), found.split(16), strict=True):
            most = max(float(block.abs().max()), 6 * 2.0**-9)
            scale = float((torch.tensor(most) / 6).clamp(max=448).to(torch.float8_e4m3fn))
            wanted = to_fp4(block / scale) * scale
            assert torch.equal(mine, wanted)


@pytest.mark.parametrize("rounds", [fp8_round, fp4_round, fp4_round_fine])
def test_a_block_keeps_its_bits_in_any_company_and_zeros_stay(rounds: object) -> None:
    assert callable(rounds)
    x = values()
    whole = rounds(x)
    for count in (1, 3, 17, 70):
        assert torch.equal(rounds(x[5 : 5 + count].clone()), whole[5 : 5 + count])
    assert torch.equal(rounds(x[:, :32].contiguous()), whole[:, :32])
    assert torch.equal(rounds(torch.zeros(3, 64)), torch.zeros(3, 64))
    # What is on the grid of its scale stays where it is.
    assert torch.equal(rounds(whole), whole) or rounds is fp4_round_fine
