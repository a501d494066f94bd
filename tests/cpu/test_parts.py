"""Sums that ranks share: parts apart, added in the tree, are the whole's bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.ops.experts import ranges
from tensorfold.core.ops.linear_parts import split, tree

FORMS = pytest.mark.parametrize("form", range(3))
ROWS = pytest.mark.parametrize("rows", [1, 3, 8, 33, 65])
EXPERTS, TOP, SIZE, INNER = 16, 4, 64, 48


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def picks(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    order = torch.rand(rows, EXPERTS, generator=generator).argsort(-1)
    return order[:, :TOP].sort(-1).values, torch.rand(rows, TOP, generator=generator)


def run_experts(name: str, form: int, rows: int, first: int, held: int) -> Tensor:
    ids_RK, weight_RK = picks(rows)
    # What is not held may be anything.
    here = (ids_RK >= first) & (ids_RK < first + held)
    weight_RK = weight_RK.masked_fill(~here, float("nan"))
    own = slice(first, first + held)
    args = [
        normal(1, rows, SIZE),
        ids_RK,
        weight_RK,
        normal(2, EXPERTS, SIZE, 2 * INNER)[own].contiguous(),
        normal(3, EXPERTS, INNER, SIZE)[own].contiguous(),
        1.0,
        *([False] if name == "experts_weighted" else []),
        first,
        ranges(EXPERTS) * held // EXPERTS,
    ]
    found: Tensor = candidates()[name][form].call(*args)
    return found


@FORMS
@ROWS
@pytest.mark.parametrize("shares", [2, 4, 8])
@pytest.mark.parametrize("name", ["experts", "experts_weighted"])
def test_shares_of_the_experts_added_in_the_tree_are_all_of_them(
    name: str, form: int, rows: int, shares: int
) -> None:
    whole = run_experts(name, form, rows, 0, EXPERTS)
    held = EXPERTS // shares
    parts = [run_experts(name, form, rows, share * held, held) for share in range(shares)]
    assert torch.equal(tree(torch.stack(parts)), whole)


@FORMS
@ROWS
@pytest.mark.parametrize("shares", [2, 4, 8])
def test_shares_of_a_product_added_in_the_tree_are_the_whole(
    form: int, rows: int, shares: int
) -> None:
    x_RK, w_PKN = normal(4, rows, 96), split(normal(5, 64, 96))
    call = candidates()["linear_parts"][form].call
    held = 8 // shares
    parts = [
        call(
            x_RK[:, share * held * 12 : (share + 1) * held * 12].contiguous(),
            w_PKN[share * held : (share + 1) * held].contiguous(),
        )
        for share in range(shares)
    ]
    assert torch.equal(tree(torch.stack(parts)), call(x_RK, w_PKN))


def test_a_run_of_a_weight_is_split_into_its_own_parts() -> None:
    w_NK = normal(6, 5, 96)
    assert torch.equal(split(w_NK[:, 24:60], 3), split(w_NK)[2:5])


@pytest.mark.parametrize("count", range(1, 10))
def test_every_number_of_parts_is_added_neighbours_first_and_in_order(count: int) -> None:
    def added(parts: list[Tensor]) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        pairs = [sum(parts[at : at + 2][1:], parts[at]) for at in range(0, len(parts), 2)]
        return added(pairs)

    parts_PRN = normal(count, count, 7, 9)
    assert torch.equal(tree(parts_PRN), added(list(parts_PRN)))
