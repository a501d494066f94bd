"""Ops whose rows stand alone: right, whole, and with the same bits in any company."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.table import BY_ROW, BY_VOCABULARY
from tensorfold.core.engine.checks import outputs
from tensorfold.core.engine.contract_check import copied, error, leaves_alone
from tensorfold.core.ops import SPECS, Case, OpSpec

CALLS = BY_ROW | BY_VOCABULARY
CASES = [
    pytest.param(spec, case, id=f"{spec.name}-{case.name}")
    for spec in SPECS
    if spec.name in CALLS
    for case in spec.cases(torch.Generator().manual_seed(1))
]
# A program of the interpreter costs milliseconds: ops of many programs show less.
SLOW = ("experts", "experts_weighted", "hc_mix", "hc_split")


def part(case: Case, first: int, last: int) -> dict[str, Any]:
    args: Mapping[str, Any] = case.args
    return copied({k: v[first:last] if k in case.rows else v for k, v in args.items()})


def same(small: tuple[Tensor, ...], large: tuple[Tensor, ...], first: int, last: int) -> bool:
    return all(torch.equal(s, w[first:last]) for s, w in zip(small, large, strict=True))


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_a_kernel_keeps_its_ops_contract(spec: OpSpec, case: Case) -> None:
    few = Case(name=case.name, args=part(case, 0, 5), rows=case.rows, budget=case.budget)
    assert error(spec, few, CALLS[spec.name]) <= case.budget
    assert leaves_alone(spec, few, CALLS[spec.name])


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_a_rows_bits_do_not_depend_on_its_company(spec: OpSpec, case: Case) -> None:
    call = CALLS[spec.name]
    slow = spec.name in SLOW
    whole = outputs(call(*part(case, 0, 6 if slow else 37).values()))
    for first, last in ((0, 1), (2, 5)) if slow else ((0, 1), (1, 3), (1, 18), (3, 36)):
        assert same(outputs(call(*part(case, first, last).values())), whole, first, last)


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_no_rows_are_an_empty_result(spec: OpSpec, case: Case) -> None:
    found = outputs(CALLS[spec.name](*part(case, 0, 0).values()))
    wanted = outputs(spec.shape(*part(case, 0, 0).values()))
    assert [x.shape for x in found] == [x.shape for x in wanted]


def test_sums_of_beginnings_have_the_same_bits_however_much_follows() -> None:
    call = BY_VOCABULARY["running_sums"]
    x = torch.rand(3, 1100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = call(x)
    for places in (1, 2, 163, 255, 256, 257, 512, 1024):
        assert torch.equal(call(x[:, :places].contiguous()), whole[:, :places]), places
