"""The op contract (`core/ops/contract.py`), run over every candidate of a backend.

For each op and case: against the reference in float64 within the case's budget; runs of its rows,
alone, against the same rows in a crowd, bit for bit; twice the same; nothing written but what the
op says it writes; and fresh memory full of NaN, so that an output left unwritten shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.engine.checks import outputs
from tensorfold.core.engine.optable import Candidate, Candidates
from tensorfold.core.engine.rehearsal import zeroing
from tensorfold.core.ops import SPECS, Case, OpSpec

# What outputs and values between two products lose to a format, beside a case's budget.
FORMATS: Mapping[torch.dtype, float] = {torch.float32: 0.0, torch.bfloat16: 2.0**-7}
SMALL = 70
LARGE = (71, 128, 136, 200, 320)
# Runs around the sizes at which kernels differ.
DISTINCT = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, SMALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What one candidate showed on one case; `wrong` is empty when all of it holds."""

    error: float
    wrong: tuple[str, ...]


def copied(args: dict[str, Any]) -> dict[str, Any]:
    """Tensors of their own, laid out in order: an op may write what it must not."""
    whole = torch.contiguous_format
    return {
        name: arg.clone(memory_format=whole) if isinstance(arg, Tensor) else arg
        for name, arg in args.items()
    }


def doubled(args: dict[str, Any]) -> dict[str, Any]:
    return {
        name: arg.double() if isinstance(arg, Tensor) and arg.is_floating_point() else arg
        for name, arg in copied(args).items()
    }


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill memory that torch hands out uninitialised with NaN, or with the largest integer."""
    before = torch.are_deterministic_algorithms_enabled()
    switches: Any = torch.utils.deterministic
    fill = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    switches.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        switches.fill_uninitialized_memory = fill


def distance(found: Tensor, wanted: Tensor) -> float:
    """Largest |found - wanted| over the largest |wanted|; integers are equal or infinitely far."""
    if found.shape != wanted.shape or not bool(torch.isfinite(found.double()).all()):
        return float("inf")
    if not found.is_floating_point():
        return 0.0 if torch.equal(found, wanted) else float("inf")
    scale = max(float(wanted.abs().max()), 1e-30)
    return float((found.double() - wanted).abs().max()) / scale


def error(spec: OpSpec, case: Case, call: Callable[..., Any]) -> float:
    """Against the reference in float64: outputs and whatever the op writes."""
    given, wanted_args = copied(dict(case.args)), doubled(dict(case.args))
    with poisoned():
        found = outputs(call(*given.values()))
    wanted = outputs(spec.reference(*wanted_args.values()))
    pairs = list(zip(found, wanted, strict=True))
    pairs += [(given[name], wanted_args[name]) for name in spec.mutates]
    return max(distance(mine, theirs) for mine, theirs in pairs)


def leaves_alone(spec: OpSpec, case: Case, call: Callable[..., Any]) -> bool:
    """Nothing is written but what the op says it writes."""
    given = copied(dict(case.args))
    call(*given.values())
    return all(
        torch.equal(arg, case.args[name])
        for name, arg in given.items()
        if isinstance(arg, Tensor) and name not in spec.mutates
    )


def repeats(spec: OpSpec, case: Case, call: Callable[..., Any]) -> bool:
    first, second = copied(dict(case.args)), copied(dict(case.args))
    same = all(map(torch.equal, outputs(call(*first.values())), outputs(call(*second.values()))))
    return same and all(torch.equal(first[name], second[name]) for name in spec.mutates)


def crowd_keeps_bits(case: Case, call: Callable[..., Any]) -> bool:
    """Every run of 1 to `SMALL` rows, and some long ones, has the bits it has among all rows."""
    whole = outputs(call(*copied(dict(case.args)).values()))
    for here, part in runs(case, (*range(1, SMALL + 1), *LARGE)):
        for small, large in zip(outputs(call(*part.values())), whole, strict=True):
            if not torch.equal(small, large[here]):
                return False
    return True


def runs(case: Case, counts: Sequence[int]) -> Iterator[tuple[slice, dict[str, Any]]]:
    """Where a run of so many rows lies, and the call on it alone."""
    rows = case.args[case.rows[0]].shape[0]
    for count in counts:
        first = (7 * count) % 53
        if first + count <= rows:
            here = slice(first, first + count)
            yield (
                here,
                copied({n: arg[here] if n in case.rows else arg for n, arg in case.args.items()}),
            )


def judge(spec: OpSpec, case: Case, candidate: Candidate) -> Verdict:
    found = error(spec, case, candidate.call)
    wrong = []
    if not found <= case.budget:
        wrong.append(f"off by {found:.1e}, budget {case.budget:.1e}")
    if not repeats(spec, case, candidate.call):
        wrong.append("twice is not the same")
    if not leaves_alone(spec, case, candidate.call):
        wrong.append("writes what it must not")
    if case.rows and not crowd_keeps_bits(case, candidate.call):
        wrong.append("a row's bits depend on its company")
    return Verdict(error=found, wrong=tuple(wrong))


def check_backend(
    name: str,
    candidates: Candidates,
    device: torch.device,
    report: Callable[[str], None],
    formats: Sequence[torch.dtype] = (torch.float32,),
    ahead: Callable[[Callable[[], None]], None] | None = None,
) -> bool:
    """One line an op, form and format, and a SUMMARY line; true when a guaranteed form of each op
    holds and every preferred form either holds or has one that does behind it. `ahead` is given a
    function that makes most of the calls, and makes ready what they will run."""
    held = failed = 0
    missing = []
    with torch.inference_mode():
        if ahead is not None:
            ahead(lambda: rehearse(candidates, device, formats))
        for spec in SPECS:
            for dtype in formats:
                cases = cases_of(spec, dtype, device)
                usable = False
                for candidate in candidates[spec.name]:
                    verdicts = [judge(spec, case, candidate) for case in cases]
                    wrong = [text for verdict in verdicts for text in verdict.wrong]
                    worst = max(verdict.error for verdict in verdicts)
                    state = "holds" if not wrong else "FAILS: " + "; ".join(dict.fromkeys(wrong))
                    label = candidate.label if len(formats) == 1 else f"{candidate.label} {dtype}"
                    report(f"{spec.name:17} {label:36} {worst:8.1e}  {state}")
                    held, failed = held + (not wrong), failed + bool(wrong)
                    usable = usable or not wrong
                    if wrong and not candidate.library:
                        missing.append(spec.name)
                if not usable:
                    missing.append(spec.name)
    missing = list(dict.fromkeys(missing))
    ending = "all ops hold" if not missing else "no sound form of " + ", ".join(missing)
    report(f"SUMMARY {name}: {len(SPECS)} ops, {held} forms hold, {failed} fail, {ending}")
    return not missing


def rehearse(candidates: Candidates, device: torch.device, formats: Sequence[torch.dtype]) -> None:
    """Every candidate on every case, and on the runs of rows that differ, with outputs that are
    zero."""
    for spec in SPECS:
        for dtype in formats:
            for case in cases_of(spec, dtype, device):
                for candidate in candidates[spec.name]:
                    call = zeroing(candidate.call)
                    call(*copied(dict(case.args)).values())
                    for _, part in runs(case, (*DISTINCT, *LARGE)) if case.rows else ():
                        call(*part.values())


def cases_of(spec: OpSpec, dtype: torch.dtype, device: torch.device) -> list[Case]:
    return on_device(in_format(spec, spec.cases(torch.Generator().manual_seed(1)), dtype), device)


def in_format(spec: OpSpec, cases: list[Case], dtype: torch.dtype) -> list[Case]:
    """The cases as an engine of this format calls the op."""

    def cast(name: str, arg: Any) -> Any:
        narrow = isinstance(arg, Tensor) and arg.is_floating_point() and name not in spec.wide
        return arg.to(dtype) if narrow else arg

    return [
        replace(
            case,
            args={name: cast(name, arg) for name, arg in case.args.items()},
            budget=case.budget + FORMATS[dtype],
        )
        for case in cases
    ]


def on_device(cases: list[Case], device: torch.device) -> list[Case]:
    return [
        Case(
            name=case.name,
            args={k: v.to(device) if isinstance(v, Tensor) else v for k, v in case.args.items()},
            rows=case.rows,
            budget=case.budget,
        )
        for case in cases
    ]
