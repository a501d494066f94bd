"""Indexes that list rows of a memory: right, and each row by itself however rows are cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import index_scores
from tensorfold.backends.cuda_triton.kernels.best import Select, best
from tensorfold.backends.cuda_triton.table import BY_MEMORY
from tensorfold.core.engine.checks import outputs
from tensorfold.core.engine.contract_check import copied, error, leaves_alone, poisoned
from tensorfold.core.ops import SPECS, Case, OpSpec, pick_rows, pick_tokens

CASES = [
    pytest.param(spec, case, id=f"{spec.name}-{case.name}")
    for spec in SPECS
    if spec.name in ("pick_tokens", "pick_rows")
    for case in spec.cases(torch.Generator().manual_seed(1))
]
# Of the longest case there is nothing in company that the others have not.
CUT = [case for case in CASES if case.id != "pick_rows-64of1000keep0in0"]
NAN = float("nan")


def part(case: Case, first: int, last: int) -> dict[str, Any]:
    args: Mapping[str, Any] = case.args
    return copied({k: v[first:last] if k in case.rows else v for k, v in args.items()})


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_a_kernel_keeps_its_ops_contract(spec: OpSpec, case: Case) -> None:
    few = Case(name=case.name, args=part(case, 0, 5), rows=case.rows, budget=case.budget)
    assert error(spec, few, BY_MEMORY[spec.name]) <= case.budget
    assert leaves_alone(spec, few, BY_MEMORY[spec.name])


@pytest.mark.parametrize(("spec", "case"), CUT)
def test_a_rows_lists_do_not_depend_on_its_company_nor_on_how_rows_are_cut(
    spec: OpSpec, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, many = BY_MEMORY[spec.name], 18
    alone = [outputs(call(*part(case, row, row + 1).values())) for row in range(many)]
    some = outputs(call(*part(case, 1, 4).values()))
    monkeypatch.setattr(index_scores, "MANY", 2)
    monkeypatch.setattr(index_scores, "SCRATCH", 1)
    with poisoned():
        whole = outputs(call(*part(case, 0, many).values()))
    for place, wanted in enumerate(whole):
        assert torch.equal(torch.cat([one[place] for one in alone]), wanted)
        assert torch.equal(some[place], wanted[1:4])


def token_args(scores: Tensor, position: list[int], top: int) -> tuple[Any, ...]:
    """An index of one head and key size one whose pool p scores scores[p]."""
    rows, pools = len(position), len(scores)
    keys = torch.cat([scores, torch.full((-pools % 16 + 16,), NAN)])[:, None]
    return (
        torch.ones(rows, 1, 1),
        torch.ones(rows, 1),
        keys,
        torch.arange(len(keys) // 16)[None],
        torch.zeros(rows, dtype=torch.int64),
        torch.tensor(position),
        top,
        4,
        64,
        4 * pools,
    )


def test_ties_go_to_the_lowest_pool_and_the_open_pools_tail_is_listed() -> None:
    """relu makes zeros of both signs, which are one score."""
    scores = torch.tensor([1.0, 0.0, -3.0, 2.0, 1.0, 1.0, -1.0, 2.0] * 4)
    args = token_args(scores, [127, 126, 61, 15, 2, 0], 5)
    assert torch.equal(BY_MEMORY["pick_tokens"](*args), pick_tokens.reference(*args))
    negative = list(args)
    negative[1] = -args[1]
    assert torch.equal(BY_MEMORY["pick_tokens"](*negative), pick_tokens.reference(*negative))


def test_pools_beyond_what_a_row_sees_change_nothing() -> None:
    scores = torch.rand(64, generator=torch.Generator().manual_seed(5))
    positions = [100, 77, 3]
    found = BY_MEMORY["pick_tokens"](*token_args(scores, positions, 6))
    scores[26:] = NAN
    args = token_args(scores, positions, 6)
    assert torch.equal(BY_MEMORY["pick_tokens"](*args), found)
    wider = (*args[:3], torch.zeros(1, 40, dtype=torch.int64), *args[4:9], 2560)
    wider[3][0, : args[3].shape[1]] = args[3]
    assert torch.equal(BY_MEMORY["pick_tokens"](*wider)[:, : found.shape[1]], found)


@pytest.mark.parametrize("run", [16, 64, 4096])
@pytest.mark.parametrize("top", [1, 5, 8, 200])
def test_rows_cut_into_runs_keep_what_they_keep_whole(run: int, top: int) -> None:
    generator = torch.Generator().manual_seed(6)
    score = torch.randint(-4, 5, (3, 150), generator=generator).float()
    score[1] = 7.0
    # Zeros of both signs are one score, and the best here.
    score[2] = -score[2].abs()
    score[2, ::3] = 0.0
    seen = torch.tensor([150, 149, 77])
    found = torch.full((3, top), 99)
    best(score, Select(seen, 0, 1), top, found, tokens=False, run=run)
    for row in range(3):
        wanted = pick_rows.best(score[row, : seen[row]], top)
        assert found[row].tolist() == wanted + [-1] * (top - len(wanted))


@pytest.mark.parametrize("run", [64, 4096])
@pytest.mark.parametrize("top", [1, 5, 60])
def test_scores_that_are_no_numbers_list_nothing_that_a_row_does_not_see(
    run: int, top: int
) -> None:
    """Whatever a ruined row lists is read of the memory of all: it may be wrong, not elsewhere."""
    bits = (0x7FC00000, 0x7FFFFFFF, -1, -0x400000, 0x7F800000, -0x800000)
    bad = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    sound = torch.rand(90, generator=torch.Generator().manual_seed(8))
    score = torch.stack([sound, sound, bad.repeat(15), *(one.repeat(90) for one in bad)])
    score[1, ::3] = bad.repeat(5)
    seen = torch.tensor([90, 77, 90, 90, 77, 90, 41, 90, 90])
    found = torch.full((len(seen), top), 99)
    best(score, Select(seen, 0, 1), top, found, tokens=False, run=run)
    for row, count in enumerate(seen.tolist()):
        listed = [place for place in found[row].tolist() if place != -1]
        assert listed == sorted(set(listed))
        assert all(0 <= place < count for place in listed)
        assert found[row].tolist() == listed + [-1] * (top - len(listed))
    assert found[0].tolist() == pick_rows.best(sound, top)


@pytest.mark.parametrize("keep", [0, 2])
def test_rows_that_see_nothing_or_little_list_it_all(keep: int) -> None:
    generator = torch.Generator().manual_seed(7)
    visible = torch.tensor([0, 1, 3, 8])
    args = (
        torch.randn(4, 2, 8, generator=generator),
        torch.randn(4, 2, generator=generator),
        torch.randn(64, 8, generator=generator),
        torch.tensor([[1, 0]]),
        torch.zeros(4, dtype=torch.int64),
        visible,
        torch.zeros(4, 0, dtype=torch.int64),
        *(4, keep, 2, 32, 64),
    )
    args[2][32 + 8 :] = NAN
    call: Callable[..., Any] = BY_MEMORY["pick_rows"]
    for mine, theirs in zip(call(*args), pick_rows.reference(*args), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_no_rows_are_an_empty_result(spec: OpSpec, case: Case) -> None:
    found = outputs(BY_MEMORY[spec.name](*part(case, 0, 0).values()))
    wanted = outputs(spec.shape(*part(case, 0, 0).values()))
    assert [x.shape for x in found] == [x.shape for x in wanted]
