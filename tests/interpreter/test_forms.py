"""Forms for few rows and for many rows, and tiles of every size, give a row the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import experts as kernels
from tensorfold.backends.cuda_triton.kernels.many import run_many
from tensorfold.backends.cuda_triton.kernels.products import each, summed, tile_many
from tensorfold.backends.cuda_triton.kernels.rounded import fp8_rounded
from tensorfold.backends.cuda_triton.kernels.tiles import Tile, apart, joined
from tensorfold.core.engine.contract_check import poisoned
from tensorfold.core.ops import SPECS, Case
from tensorfold.core.ops.linear_parts import tree
from tensorfold.core.ops.rounding import fp8_round

SMALL, WIDE = Tile(16, 32, 16, 4, 3), Tile(32, 64, 32, 4, 3)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("parts", [1, 2, 8])
def test_programs_that_stay_add_parts_as_others_do(rows: int, parts: int) -> None:
    x, w = normal(rows, 32 * parts), normal(96, 32 * parts)
    for weight in (joined(w, parts), apart(w.view(96, parts, 32).permute(1, 2, 0))):
        with poisoned():
            found = torch.empty(rows, 96)
            run_many(x, weight, found, SMALL, False)
            wanted = summed(x, weight, WIDE)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("rows", [1, 37])
def test_programs_that_stay_keep_heads_apart(rows: int) -> None:
    x, w = normal(rows, 3, 32), normal(3, 32, 64)
    with poisoned():
        found = torch.empty(rows, 3 * 64)
        run_many(x.flatten(1), apart(w), found, SMALL, True)
        assert torch.equal(found.view(rows, 3, 64), each(x, apart(w), WIDE))


@pytest.mark.parametrize("parts", [1, 3, 5, 6, 7])
def test_parts_of_any_number_are_added_in_the_ops_tree(parts: int) -> None:
    x, w = normal(3, parts, 16), normal(parts, 16, 32)
    sums = torch.stack([summed(x[:, part], apart(w[part : part + 1])) for part in range(parts)])
    assert torch.equal(summed(x.flatten(1), apart(w)), tree(sums))


CASES = [
    pytest.param(spec.name == "experts_weighted", case, id=f"{spec.name}-{case.name}")
    for spec in SPECS
    if spec.name in ("experts", "experts_weighted")
    for case in spec.cases(torch.Generator().manual_seed(1))[1:]
]


@pytest.mark.parametrize(("weighted", "case"), CASES)
def test_experts_by_pick_and_by_group_give_the_same_bits(weighted: bool, case: Case) -> None:
    args: dict[str, Any] = {k: v[:20] if k in case.rows else v for k, v in case.args.items()}
    rounded = args.pop("rounded", False)
    # One expert has more rows than a tile, and one pick weighs nothing that is a number.
    args["ids_RK"] = args["ids_RK"].clone()
    args["ids_RK"][:17] = args["ids_RK"][0]
    absent = (args["ids_RK"] < args["first"]) | (
        args["ids_RK"] >= args["first"] + len(args["gate_up_EDI"])
    )
    args["weight_RK"] = args["weight_RK"].masked_fill(absent, float("nan"))
    with poisoned():
        few = kernels.run(*args.values(), weighted, rounded, few=True)
        many = kernels.run(*args.values(), weighted, rounded, (WIDE, SMALL), few=False)
    assert bool(torch.isfinite(few).all())
    assert torch.equal(few, many)


# Rows of a tile past an expert's last are no number, and go nowhere.
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")
@pytest.mark.parametrize(("weighted", "rounded"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("first", "parts"), [(0, 8), (4, 2)])
def test_experts_through_descriptors_give_the_same_bits(
    weighted: bool, rounded: bool, first: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "DESCRIBED", (torch.float32,))
    held = 16 * parts // 8
    x, gate_up, down = normal(37, 32), normal(held, 32, 128), normal(held, 64, 128)
    x = torch.cat([x, x, x, x], -1)
    gate_up = torch.cat([gate_up, gate_up, gate_up, gate_up], 1) / 8
    ids = torch.rand(37, 16, generator=torch.Generator().manual_seed(2)).argsort(-1)[:, :4]
    ids = ids.sort(-1).values
    # One expert has more rows than a tile, and some rows' picks are those of nobody.
    ids[:20], ids[30:33] = ids[0].clone(), -1
    absent = (ids < first) | (ids >= first + held)
    weight = normal(37, 4).masked_fill(absent, float("nan"))
    args = (x, ids, weight, gate_up, down, 1.0, first, parts, weighted, rounded)
    tiles = Tile(16, 32, 16, 4, 3), Tile(32, 128, 16, 4, 3)
    with poisoned():
        few = kernels.run(*args, few=True)
        many = kernels.run(*args, tiles, few=False)
    assert bool(torch.isfinite(few).all())
    assert torch.equal(few, many)


@pytest.mark.parametrize("few", [True, False])
def test_a_rows_picks_are_added_by_ranges_and_the_ranges_in_the_tree(few: bool) -> None:
    x, gate_up, down = normal(3, 32), normal(16, 32, 32), normal(16, 16, 32)
    ids = torch.tensor([[0, 2, 3, 9, 10], [1, 4, 6, 7, 15], [0, 8, 10, 11, 14]])
    weight = normal(3, 5)

    def run(ids: Tensor, weight: Tensor, parts: int) -> Tensor:
        return kernels.run(
            x, ids, weight, gate_up, down, 1.0, 0, parts, False, False, (SMALL, SMALL), few
        )

    sums = torch.zeros(8, 3, 32)
    for pick in range(5):
        one = run(ids[:, pick : pick + 1], weight[:, pick : pick + 1], 1)
        for row in range(3):
            sums[ids[row, pick] // 2, row] += one[row]
    assert torch.equal(run(ids, weight, 8), tree(sums))


def test_equal_experts_go_to_the_lowest_ids() -> None:
    from tensorfold.backends.cuda_triton.kernels.route import route
    from tensorfold.backends.cuda_triton.kernels.route_softplus import route_softplus

    logits = torch.zeros(3, 12)
    logits[1, 5] = 2.0
    logits[2, 3:] = 1.0
    for ids, _ in (
        route(logits, torch.zeros(12), 4, 2.5, True),
        route_softplus(logits, torch.zeros(12), 4, 2.5),
    ):
        assert ids.tolist() == [[0, 1, 2, 3], [0, 1, 2, 5], [3, 4, 5, 6]]


def test_rounding_to_fp8_is_the_references() -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def rounded(x, out):
        at = tl.arange(0, 16)[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(out + at, fp8_rounded(tl.load(x + at), 16, 64))

    x = normal(16, 64) * torch.exp2(torch.arange(64) / 8 - 6)
    x[0, :32] = 0.0
    x[1, 0], x[1, 1] = 448.0, 1e-9
    # Values half way between two narrow ones, above and below the smallest normal one.
    x[2:4, 32:] = torch.arange(1, 65).view(2, 32) / 2
    x[4:6, 32:] = torch.arange(1, 65).view(2, 32) * 2.0**-10
    x[4:6, 32] = 448.0
    out = torch.empty_like(x)
    rounded[(1,)](x, out)
    assert torch.equal(out, fp8_round(x))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_no_logit_names_an_expert_that_is_not_there(bad: float) -> None:
    from tensorfold.backends.cuda_triton.kernels.route import route

    logit = torch.full((3, 10), bad)
    logit[1, 3] = 0.5
    logit[2, ::2] = 0.0
    for bias in (torch.zeros(10), torch.full((10,), float("-inf"))):
        ids, _ = route(logit, bias, 4, 2.5, True)
        assert bool(((ids >= 0) & (ids < 10)).all())
        assert bool((ids[:, 1:] > ids[:, :-1]).all())


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("alone", [False, True])
def test_a_large_tile_lies_in_shared_memory(out: torch.dtype, parts: int, alone: bool) -> None:
    # That of a multiprocessor which has the least of those that run descriptors, for one program.
    most = 227 * 1024
    for rows in (65, 128, 300, 512, 2048, 8192):
        for columns in (128, 2048, 4096, 12288):
            for inner in (64, 96, 512, 4096):
                w = apart(torch.empty(parts, inner, columns, device="meta"))
                tile = tile_many(rows, w, alone, 132, out)
                # `stay_parts` has two parts' operands at once.
                operands = 2 if parts > 1 and not alone else 1
                step = 2 * tile.step * (tile.rows + tile.columns) * operands
                # A product's result is stored from there, while the next tile's operands come.
                used = tile.stages * step + out.itemsize * tile.rows * tile.columns
                assert used < most, (tile, rows, columns, inner)
