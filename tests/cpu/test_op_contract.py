"""The op contract holds for every form of every op here, and catches each kind of bad kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tensorfold.backends.cpu_reference.backend import check
from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.engine import contract_check
from tensorfold.core.engine.contract_check import check_backend, judge, poisoned
from tensorfold.core.engine.optable import Candidate
from tensorfold.core.ops import SPECS, Case, OpSpec, linear, linear_parts

FORMS = sum(len(choices) for choices in candidates().values())


def first_case(spec: OpSpec) -> Case:
    return spec.cases(torch.Generator().manual_seed(1))[0]


def wrong_with(spec: OpSpec, call: Callable[..., Any]) -> tuple[str, ...]:
    with torch.inference_mode():
        return judge(spec, first_case(spec), Candidate(label="bad", call=call)).wrong


def exact(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    return candidates()["linear"][-1].call(x_RK, w_NK)


def test_every_op_of_this_backend_has_a_sound_form() -> None:
    lines: list[str] = []
    assert check(lines.append)
    assert lines[-1].startswith(f"SUMMARY cpu-reference: {len(SPECS)} ops, ")
    assert lines[-1].endswith("all ops hold")
    assert len(lines) == FORMS + 1
    # The last form of each op is promised on any machine; library ones are checked at load.
    for spec in SPECS:
        own = [line for line in lines if line.split()[0] == spec.name]
        assert own[-1].endswith("holds"), own


def test_a_right_kernel_has_nothing_wrong() -> None:
    assert wrong_with(linear.OP, exact) == ()


def test_wrong_mathematics_is_off() -> None:
    (why,) = wrong_with(linear.OP, lambda x, w: exact(x, w) * (1 + 1e-4))
    assert why.startswith("off by 1.0e-04, budget")


def test_a_swap_of_two_outputs_is_off() -> None:
    (why,) = wrong_with(linear.OP, lambda x, w: exact(x, w).roll(1, -1))
    assert why.startswith("off by")


@pytest.mark.parametrize("place", [0, -1])
def test_a_row_left_unwritten_is_off_by_infinity(place: int) -> None:
    def call(x: Tensor, w: Tensor) -> Tensor:
        out = torch.empty(x.shape[0], w.shape[0])
        right = exact(x, w)
        out[1:] = right[1:]
        if place:
            out[:1] = right[:1]
            out = torch.cat([out[:-1], torch.empty(1, w.shape[0])])
        return out

    wrong = wrong_with(linear.OP, call)
    assert "off by inf, budget 2.0e-06" in wrong


def test_a_kernel_that_writes_its_input_writes_what_it_must_not() -> None:
    def call(x: Tensor, w: Tensor) -> Tensor:
        out = exact(x, w)
        x.add_(1)
        return out

    assert wrong_with(linear.OP, call) == ("writes what it must not",)


def test_a_kernel_that_writes_its_weight_writes_what_it_must_not() -> None:
    def call(x: Tensor, w: Tensor) -> Tensor:
        out = exact(x, w)
        w[0, 0] = 7.0
        return out

    assert wrong_with(linear.OP, call) == ("writes what it must not",)


def test_a_kernel_that_writes_is_no_excuse_for_the_next_one() -> None:
    """Cases are shared by the forms of an op: a bad form must not spoil them."""

    def bad(x: Tensor, w: Tensor) -> Tensor:
        out = exact(x, w)
        x.fill_(float("nan"))
        return out

    case = first_case(linear.OP)
    with torch.inference_mode():
        first = judge(linear.OP, case, Candidate(label="bad", call=bad))
        second = judge(linear.OP, case, candidates()["linear"][-1])
    assert (first.wrong, second.wrong) == (("writes what it must not",), ())


def test_a_kernel_that_is_never_the_same_twice_is_told() -> None:
    calls: list[int] = []

    def sloppy(x: Tensor, w: Tensor) -> Tensor:
        calls.append(0)
        out = exact(x, w)
        return torch.nextafter(out, torch.full_like(out, torch.inf)) if len(calls) % 2 else out

    wrong = wrong_with(linear.OP, sloppy)
    assert "twice is not the same" in wrong
    assert not any(why.startswith("off by") for why in wrong)


def test_rows_whose_bits_depend_on_company_are_told() -> None:
    def call(x: Tensor, w: Tensor) -> Tensor:
        if x.shape[0] < 67:
            return exact(x, w)
        return F.linear(x[:, :100], w[:, :100]) + F.linear(x[:, 100:], w[:, 100:])

    assert wrong_with(linear.OP, call) == ("a row's bits depend on its company",)


def test_the_plain_library_product_is_told_exactly_where_it_is_not_row_exact() -> None:
    case = first_case(linear.OP)
    x, w = case.args["x_RK"], case.args["w_NK"]
    whole = F.linear(x, w)
    same = True
    for count in range(1, 71):
        first = (7 * count) % 53
        rows = slice(first, first + count)
        same = same and torch.equal(F.linear(x[rows].contiguous(), w), whole[rows])
    told = "a row's bits depend on its company" in wrong_with(linear.OP, F.linear)
    assert told is not same


def test_parts_summed_in_another_order_stay_in_budget_but_are_row_exact() -> None:
    """The contract's budget is of the format: the tree of parts has its own test below."""

    def call(x: Tensor, w: Tensor) -> Tensor:
        parts = candidates()["linear_heads"][-1].call(x.view(x.shape[0], w.shape[0], -1), w)
        return parts.sum(1)

    assert wrong_with(linear_parts.OP, call) == ()


@pytest.mark.parametrize("form", range(3))
def test_parts_are_added_in_the_fixed_tree(form: int) -> None:
    case = first_case(linear_parts.OP)
    x, w = case.args["x_RK"], case.args["w_PKN"]
    candidate = candidates()["linear_parts"][form]
    product = candidates()["linear_heads"][form]
    p = product.call(x.view(x.shape[0], 8, -1), w).unbind(1)
    wanted = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))
    assert torch.equal(candidate.call(x, w), wanted)


def test_a_missing_sound_form_fails_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_check, "SPECS", (linear.OP, linear_parts.OP))
    forms = {name: choices[-1:] for name, choices in candidates().items()}
    broken = Candidate(label="broken", call=lambda x, w: exact(x, w) + 1)
    lines: list[str] = []
    assert not check_backend(
        "here", {**forms, "linear": (broken,)}, torch.device("cpu"), lines.append
    )
    assert lines[-1] == "SUMMARY here: 2 ops, 1 forms hold, 1 fail, no sound form of linear"
    assert any("FAILS: off by" in line for line in lines)


def test_what_is_rehearsed_is_called_again_and_judged_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rehearsal's outputs come to nothing, and no size of it is one that the check leaves out."""
    monkeypatch.setattr(contract_check, "SPECS", (linear.OP,))
    sizes: list[tuple[int, ...]] = []
    rehearsed: set[tuple[int, ...]] = set()

    def call(x: Tensor, w: Tensor) -> Tensor:
        sizes.append((*x.shape, *w.shape))
        return exact(x, w)

    def ahead(rehearse: Callable[[], None]) -> None:
        rehearse()
        rehearsed.update(sizes)
        sizes.clear()

    forms = {"linear": (Candidate(label="own", call=call),)}
    assert check_backend("here", forms, torch.device("cpu"), lambda line: None, ahead=ahead)
    assert len(rehearsed) > 3 * len(contract_check.DISTINCT)
    assert rehearsed < set(sizes)


def test_poison_fills_fresh_memory_and_is_put_back() -> None:
    with poisoned():
        assert torch.empty(5).isnan().all()
        assert torch.empty(3, dtype=torch.int64).eq(2**63 - 1).all()
    assert not torch.are_deterministic_algorithms_enabled()
