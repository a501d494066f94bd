"""Recurrences, attention and indexes at the released models' sizes: right, and row by row exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import attend_hopper
from tensorfold.backends.cuda_triton.table import BY_MEMORY
from tensorfold.core.engine.checks import ROW_ARGUMENTS, outputs
from tensorfold.core.engine.contract_check import poisoned
from tensorfold.core.ops import SPECS
from tensorfold.tools import memory_calls as calls
from tensorfold.tools.memory_calls import Maker, OpCall

FORMATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
# By format: attention rounds its weights to it, blocks multiply in it or in tf32.
BUDGETS = {torch.float32: 5e-6, torch.bfloat16: 1.5e-2}
Made = Callable[[str, torch.dtype], tuple[str, list[Any]]]
REFERENCES = {spec.name: spec.reference for spec in SPECS}

ROWS: dict[str, Callable[[Maker], OpCall]] = {
    "latent, dense": lambda m: calls.latent_attention(m, 2048, 2048, prompt=True),
    "latent, listed": lambda m: calls.latent_attention(m, 600, 131072, prompt=True),
    "latent, streams": lambda m: calls.latent_attention(m, 71, 4096, prompt=False),
    "sink": lambda m: calls.sink_attention(m, 2048, 512, prompt=True),
    "tokens": lambda m: calls.pick_tokens(m, 2048, 16384, prompt=True),
    "tokens, streams": lambda m: calls.pick_tokens(m, 71, 8192, prompt=False),
    "tokens, long": lambda m: calls.pick_tokens(m, 130, 131072, prompt=True),
    "rows": lambda m: calls.pick_rows(m, 600, 20480, "publishes", prompt=True),
    "rows, restricted": lambda m: calls.pick_rows(m, 130, 131072, "restricted", prompt=True),
    "steps": lambda m: calls.kda_steps(m, 130, 1, 1),
    "steps, windows": lambda m: calls.kda_steps(m, 71, 4, 3),
}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    """A call's op and arguments, made once for all tests of them, which leave them as they are."""

    @cache
    def make(name: str, dtype: torch.dtype) -> tuple[str, list[Any]]:
        call = ROWS[name](maker(dtype))
        return call.op, list(call.make())

    yield make
    make.cache_clear()
    torch.cuda.empty_cache()


def maker(dtype: torch.dtype) -> Maker:
    return Maker(torch.device("cuda"), dtype)


def run(op: str, args: list[Any]) -> tuple[Tensor, ...]:
    """The outputs; of the recurrence also the states of its lanes."""
    if op == "kda_steps":
        args = [*args[:-1], args[-1].clone()]
        return (*outputs(BY_MEMORY[op](*args)), args[-1][args[5]])
    return outputs(BY_MEMORY[op](*args))


def some(op: str, args: list[Any], first: int, last: int) -> list[Any]:
    rows = ROW_ARGUMENTS[op]
    return [arg[first:last].contiguous() if at in rows else arg for at, arg in enumerate(args)]


@FORMATS
@pytest.mark.parametrize("name", ROWS)
def test_a_rows_bits_do_not_depend_on_its_company(
    name: str, dtype: torch.dtype, made: Made
) -> None:
    op, args = made(name, dtype)
    with poisoned():
        whole = run(op, args)
    assert all(map(torch.equal, whole, run(op, args)))
    rows = args[0].shape[0]
    for count in (*range(1, 71), 128, 500):
        first = (7 * count) % 53
        # The last rows see most, and some of them alone are the hardest to keep.
        for start in {min(first, rows - count), rows - count} if count <= rows else set():
            part = run(op, some(op, args, start, start + count))
            for small, large in zip(part, whole, strict=True):
                assert torch.equal(small, large[start : start + count]), (count, start)


@FORMATS
@pytest.mark.parametrize("name", ROWS)
def test_few_and_many_rows_equal_the_reference(name: str, dtype: torch.dtype, made: Made) -> None:
    op, args = made(name, dtype)
    rows = args[0].shape[0]
    whole = run(op, args)
    for count in (3, 20):
        part = some(op, args, rows - count, rows)
        wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in part]
        wanted = list(outputs(REFERENCES[op](*wide)))
        if op == "kda_steps":
            wanted.append(wide[-1][wide[5]])
        for found, right in zip(whole, wanted, strict=True):
            if found.is_floating_point():
                error = float((found[rows - count :] - right).abs().max() / right.abs().max())
                assert error <= BUDGETS[dtype], error
            else:
                assert same_lists(found[rows - count :], right)


@pytest.mark.parametrize("name", ["dense", "listed", "streams", "sink"])
def test_a_form_for_one_kind_of_gpu_has_the_bits_of_the_form_for_all(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unused entries anywhere, whole parts of them, and memory that nothing lists."""
    m = maker(torch.bfloat16)
    call = {
        "dense": lambda: calls.latent_attention(m, 300, 320, prompt=True),
        "listed": lambda: calls.latent_attention(m, 200, 16384, prompt=True),
        "streams": lambda: calls.latent_attention(m, 90, 4096, prompt=False),
        "sink": lambda: calls.sink_attention(m, 150, 512, prompt=True),
    }[name]()
    args = list(call.make())
    memory, place = (1, 4) if call.op == "latent_attention" else (4, 5)
    lists = args[place]
    holes = torch.rand(lists.shape, generator=m.generator, device=m.device) < 0.3
    holes[:, 0] = False
    lists[holes] = -1
    lists[5, 1:], lists[6, :-3], lists[7, 1:-1] = -1, -1, -1
    lists[6, -1] = lists[0, 0]
    if call.op == "sink_attention":
        unused = torch.ones(len(args[memory]), dtype=torch.bool, device=m.device)
        unused[lists[lists >= 0]] = False
        args[memory][unused] = float("nan")
    with poisoned():
        found = BY_MEMORY[call.op](*args)
    monkeypatch.setattr(attend_hopper, "fits", lambda q_RHC: False)
    assert torch.equal(found, BY_MEMORY[call.op](*args))
    assert torch.isfinite(found).all()


def same_lists(found: Tensor, right: Tensor) -> bool:
    """Equal but for near-ties at the cut: a hundredth of a list may differ, and it ascends."""
    differ = 0
    for mine, theirs in zip(found.tolist(), right.tolist(), strict=True):
        used = [place for place in mine if place >= 0]
        assert used == sorted(set(used))
        assert mine[len(used) :] == [-1] * (len(mine) - len(used))
        differ = max(differ, len(set(used) ^ {place for place in theirs if place >= 0}))
    return differ <= max(2, found.shape[1] // 100)


def block_args(dtype: torch.dtype, rows: int, gate: float | None) -> list[Any]:
    args = list(calls.kda_blocks(maker(dtype), rows).make())
    if gate is not None:
        args[3] = torch.full_like(args[3], gate)
    return args


@FORMATS
@pytest.mark.parametrize("gate", [None, -5.0, -0.01])
def test_blocks_equal_the_recurrence_and_their_cuts(gate: float | None, dtype: torch.dtype) -> None:
    args = block_args(dtype, 2048, gate)
    *inputs, rows_NT, lane_N, state = args
    whole_state, cut_state = state.clone(), state.clone()
    whole = BY_MEMORY["kda_blocks"](*inputs, rows_NT, lane_N, whole_state)
    for first, last in ((0, 1), (1, 3), (3, 20), (20, 32)):
        here = slice(64 * first, 64 * last)
        part = BY_MEMORY["kda_blocks"](
            *(x[here] for x in inputs),
            rows_NT[first:last] - 64 * first,
            lane_N[first:last],
            cut_state,
        )
        assert torch.equal(part, whole[here])
    assert torch.equal(cut_state, whole_state)
    among = torch.full((2048, 3, *inputs[2].shape[1:]), float("nan"), dtype=dtype, device="cuda")
    among[:, 2] = inputs[2]
    found_state = state.clone()
    apart = [*inputs[:2], among[:, 2], *inputs[3:]]
    assert torch.equal(BY_MEMORY["kda_blocks"](*apart, rows_NT, lane_N, found_state), whole)
    assert torch.equal(found_state, whole_state)
    few = [x[:200] for x in inputs]
    index = torch.arange(256, device="cuda").clamp(max=200).view(-1, 64)
    found_state, wanted_state = state.clone(), state.double()
    found = BY_MEMORY["kda_blocks"](*few, index, lane_N[:4], found_state)
    assert torch.equal(found, whole[:200])
    wide = [x.double() for x in few]
    wanted = REFERENCES["kda_blocks"](*wide, index, lane_N[:4], wanted_state)
    budget = max(1e-5, BUDGETS[dtype])
    for mine, right in ((found, wanted), (found_state, wanted_state)):
        assert float((mine - right).abs().max() / right.abs().max()) <= budget


@pytest.mark.parametrize("name", ["latent, streams", "sink", "tokens, streams", "rows", "steps"])
def test_a_captured_call_reads_what_lies_there_when_it_is_replayed(name: str) -> None:
    call = ROWS[name](maker(torch.bfloat16))
    args, other = list(call.make()), list(call.make())
    with torch.inference_mode(False), torch.no_grad():
        args = [x.clone() if isinstance(x, Tensor) else x for x in args]
        other = [x.clone() if isinstance(x, Tensor) else x for x in other]
        wanted = run(call.op, other)
        run(call.op, args)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run(call.op, args)
        for mine, new in zip(args, other, strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
    assert all(map(torch.equal, found, wanted))
