"""Attention over listed rows: right, and each row by itself however it is spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import attend as attending
from tensorfold.backends.cuda_triton.table import BY_MEMORY
from tensorfold.core.engine.checks import outputs
from tensorfold.core.engine.contract_check import copied, error, leaves_alone, poisoned
from tensorfold.core.ops import SPECS, Case, OpSpec

NAMES = ("latent_attention", "sink_attention")
# Of the widest case there is nothing here that the others have not.
CASES = [
    pytest.param(spec, case, id=f"{spec.name}-{case.name}")
    for spec in SPECS
    if spec.name in NAMES
    for case in spec.cases(torch.Generator().manual_seed(1))
    if case.name != "1024x64"
]
NAN = float("nan")


def part(case: Case, first: int, last: int) -> dict[str, Any]:
    args: Mapping[str, Any] = case.args
    return copied({k: v[first:last] if k in case.rows else v for k, v in args.items()})


def whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row's parts in one program."""
    attend = attending.attend

    def without_spreading(*args: Any) -> Tensor:
        return attend(*args, few=0)

    for name in NAMES:
        monkeypatch.setattr(
            f"tensorfold.backends.cuda_triton.kernels.{name}.attend", without_spreading
        )


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_a_kernel_keeps_its_ops_contract(spec: OpSpec, case: Case) -> None:
    few = Case(name=case.name, args=part(case, 0, 5), rows=case.rows, budget=case.budget)
    assert error(spec, few, BY_MEMORY[spec.name]) <= case.budget
    assert leaves_alone(spec, few, BY_MEMORY[spec.name])


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_a_rows_bits_do_not_depend_on_its_company_nor_on_how_it_is_spread(
    spec: OpSpec, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, many = BY_MEMORY[spec.name], 6
    alone = [call(*part(case, row, row + 1).values()) for row in range(many)]
    some = call(*part(case, 1, 4).values())
    whole_rows(monkeypatch)
    with poisoned():
        whole = call(*part(case, 0, many).values())
    assert torch.equal(torch.cat(alone), whole)
    assert torch.equal(some, whole[1:4])


@pytest.mark.parametrize("spread", [True, False])
def test_what_no_entry_names_does_not_reach_a_row(
    spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unused entries, whole parts of them too, first or last, and memory that nothing lists."""
    if not spread:
        whole_rows(monkeypatch)
    generator = torch.Generator().manual_seed(2)
    q, sink = torch.randn(3, 2, 24, generator=generator), torch.randn(2, generator=generator)
    ring, fresh, memory = (torch.randn(40, 24, generator=generator) for _ in range(3))
    window = torch.full((3, 40), -1)
    window[0, 5:] = torch.arange(35)
    window[1, -1] = 45
    window[2, 0], window[2, 39] = 79, 0
    lists = torch.full((3, 70), -1)
    lists[1, :3], lists[2, 69] = torch.tensor([4, 9, 11]), 7
    args = (window, memory, lists, sink, 0.2)
    call = BY_MEMORY["sink_attention"]
    found = call(q, ring, fresh, *args)
    op = next(spec for spec in SPECS if spec.name == "sink_attention")
    wanted = op.reference(
        q.double(),
        ring.double(),
        fresh.double(),
        window,
        memory.double(),
        lists,
        sink.double(),
        0.2,
    )
    assert float((found - wanted).abs().max()) <= 2e-6
    named = torch.zeros(120, dtype=torch.bool)
    named[window[window >= 0]] = True
    named[80 + lists[lists >= 0]] = True
    for buffer, own in ((ring, named[:40]), (fresh, named[40:80]), (memory, named[80:])):
        buffer[~own] = NAN
    assert torch.equal(call(q, ring, fresh, *args), found)
    longer = torch.cat([lists, torch.full((3, 91), -1)], 1)
    assert torch.equal(call(q, ring, fresh, window, memory, longer, sink, 0.2), found)


def test_a_rows_bits_do_not_depend_on_how_many_heads_a_program_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the tiles of narrower formats, which have more of them for more rows."""
    monkeypatch.setattr(attending, "WIDE", attending.SHORT)
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows, heads, size = 10, 24, 200
    q, sink, ring, fresh, memory = (
        normal(*shape)
        for shape in ((rows, heads, size), (heads,), (40, size), (40, size), (90, size))
    )
    window = torch.randint(-1, 80, (rows, 40), generator=generator)
    lists = torch.randint(-20, 90, (rows, 50), generator=generator).clamp(min=-1)
    lists[3] = -1

    def call(first: int, last: int, few: int) -> Tensor:
        some = slice(first, last)
        none = torch.zeros(1, 1, dtype=torch.int64)
        keys = attending.Keys(ring, fresh, window[some], memory, lists[some], none, none[0], 0)
        with poisoned():
            return attending.attend(q[some], keys, sink, 0.1, attending.SHORT, few)

    assert attending.SHORT.few.heads < heads < attending.SHORT.some.heads
    whole = call(0, rows, 0)
    assert bool(torch.isfinite(whole).all())
    for first, last in ((0, rows), (0, 1), (2, 9), (3, 4)):
        for few in (0, rows):
            assert torch.equal(call(first, last, few), whole[first:last]), (first, last, few)


@pytest.mark.parametrize(("spec", "case"), CASES)
def test_no_rows_are_an_empty_result(spec: OpSpec, case: Case) -> None:
    found = outputs(BY_MEMORY[spec.name](*part(case, 0, 0).values()))
    wanted = outputs(spec.shape(*part(case, 0, 0).values()))
    assert [x.shape for x in found] == [x.shape for x in wanted]
