"""Calls that are timed on a GPU, at small sizes: what they time is what the contract says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from inspect import signature
from typing import Any

import pytest
import torch

from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.engine.contract_check import error
from tensorfold.core.errors import StartError
from tensorfold.core.ops import SPECS, Case
from tensorfold.tools import bench_memory
from tensorfold.tools import memory_calls as calls
from tensorfold.tools.bench_ops import Rates
from tensorfold.tools.memory_calls import Maker, OpCall

SMALL = {"HEADS": 2, "KDA": 16, "LATENT": 32, "INDEX_HEADS": 4, "INDEX": 16, "TOP": 8, "BLOCKS": 4}
MADE: dict[str, Callable[[Maker], OpCall]] = {
    "steps": lambda m: calls.kda_steps(m, 3, 2, 1),
    "blocks": lambda m: calls.kda_blocks(m, 256, lanes=2),
    "latent, dense": lambda m: calls.latent_attention(m, 5, 64, prompt=True),
    "latent, listed": lambda m: calls.latent_attention(m, 5, 256, prompt=True),
    "latent, streams": lambda m: calls.latent_attention(m, 5, 256, prompt=False),
    "sink, prompt": lambda m: calls.sink_attention(m, 150, 8, prompt=True),
    "sink, streams": lambda m: calls.sink_attention(m, 4, 8, prompt=False),
    "tokens": lambda m: calls.pick_tokens(m, 5, 256, prompt=True),
    "tokens, streams": lambda m: calls.pick_tokens(m, 3, 256, prompt=False),
    "rows": lambda m: calls.pick_rows(m, 5, 128, "publishes", prompt=True),
    "rows, restricted": lambda m: calls.pick_rows(m, 5, 128, "restricted", prompt=True),
}


@pytest.mark.parametrize("name", MADE)
def test_a_timed_call_is_one_that_the_contract_takes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size, value in SMALL.items():
        monkeypatch.setattr(calls, size, value)
    call = MADE[name](Maker(torch.device("cpu"), torch.float32))
    spec = next(spec for spec in SPECS if spec.name == call.op)
    names = signature(spec.reference).parameters
    case = Case(name=name, args=dict(zip(names, call.make(), strict=True)), rows=())
    with torch.inference_mode():
        assert error(spec, case, candidates()[call.op][-1].call) <= 1e-5
    assert call.moved > 0
    assert call.operations > 0


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_every_call_is_timed_over_operands_of_its_own_beside_the_longer_of_its_floors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tensorfold.backends.cuda_triton.table import BY_MEMORY

    for size, value in SMALL.items():
        monkeypatch.setattr(calls, size, value)
    for name in BY_MEMORY:
        monkeypatch.setitem(BY_MEMORY, name, candidates()[name][-1].call)
    maker = Maker(torch.device("cpu"), torch.float32)
    made = [build(maker) for build in MADE.values()]
    turned: list[int] = []

    def timed(runs: Sequence[Callable[[], Any]]) -> float:
        turned.append(len(runs))
        runs[-1]()
        return 7.0

    monkeypatch.setattr(bench_memory, "timed", timed)
    monkeypatch.setattr(bench_memory, "measure_rates", lambda device: Rates(copy=1e9, matrix=1e11))
    monkeypatch.setattr(bench_memory, "calls", lambda maker: iter(made))
    monkeypatch.setattr(bench_memory, "TURNED", 3.5 * made[0].moved)
    with torch.inference_mode():
        found = bench_memory.figures([], maker)
        some = bench_memory.figures(["kda_steps"], maker)
    assert [one.name for one in found] == [call.name for call in made]
    assert turned[0] == 3
    for one, call in zip(found, made, strict=True):
        assert one.us == 7.0
        assert one.floor == pytest.approx(max(call.moved / 1e3, call.operations / 1e5), rel=1e-12)
    assert [one.op for one in some] == ["kda_steps"]
    bench_memory.show(found)
    with pytest.raises(StartError, match="--ops names kda_step; there are kda_steps, "):
        bench_memory.figures(["kda_step"], maker)


@pytest.mark.parametrize("call", [calls.latent_attention, calls.pick_tokens])
def test_a_context_that_ends_amid_a_page_is_no_call_since_its_table_ends_before(
    call: Callable[..., OpCall],
) -> None:
    with pytest.raises(AssertionError, match="300"):
        call(Maker(torch.device("cpu"), torch.float32), 5, 300, prompt=True).make()
