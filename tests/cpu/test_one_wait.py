"""One round is one wait: nothing between its launch and its one read looks at a value.

Ops of the table are opaque here: what one of them does inside is its backend's to answer for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tensorfold.core.engine.compile import library_ops
from tensorfold.core.engine.torch_engine import TorchEngine
from tests.cpu.steps import SCENES, STREAMS, begun, family_engine, rebuilt, windows_of

aten = torch.ops.aten
# Operations whose result's size, or a Python value, depends on what a tensor holds.
LOOKING = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.nonzero_numpy,
    aten.masked_select,
    aten.is_nonzero,
    aten.equal,
    aten.unique_dim,
    aten._unique,
    aten._unique2,
    aten.unique_consecutive,
    aten.bincount,
}
READS = {"tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"}


class Looks(TorchDispatchMode):
    """Notes operations that look at values."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket
        if name is aten.repeat_interleave:
            if func is aten.repeat_interleave.Tensor:
                self.seen.append(str(func))
        elif name in LOOKING or picks_by_truth(name, args):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def picks_by_truth(name: Any, args: Sequence[Any]) -> bool:
    """Indexing by a boolean tensor: as many rows as are true."""
    if name not in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
        return False
    return any(isinstance(one, Tensor) and one.dtype == torch.bool for one in args[1])


class Reads(TorchFunctionMode):
    """Notes methods that bring a tensor's values to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def watched(work: Callable[[], object]) -> tuple[list[str], list[str]]:
    with Reads() as reads, Looks() as looks:
        work()
    return looks.seen, reads.seen


@pytest.fixture(scope="module", params=["mtp", "dspark"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    found = family_engine(request.param, tmp_path_factory.mktemp(request.param))
    model: Any = found.model
    return rebuilt(found, ops=library_ops(f"one_wait_{request.param}", model.ops))


@pytest.mark.parametrize("name", SCENES)
def test_a_round_of_eight_drafted_streams_reads_its_results_once_and_nothing_before(
    engine: TorchEngine, name: str
) -> None:
    scene, choice = SCENES[name], random.Random(name)
    coming = begun(engine, scene)
    widest = 0
    for _ in range(4):
        windows = windows_of(engine, coming, scene, choice)
        widest = max(widest, *(len(window.tokens) for window in windows))
        flight = engine.round(windows)
        landed: list[Any] = []
        looks, reads = watched(lambda flight=flight, landed=landed: landed.extend(flight.land()))
        assert (looks, reads) == ([], ["numpy"])
        assert len(landed) == STREAMS
        for one in landed:
            coming[one.stream] = [one.tokens[-1], *one.drafts]
    assert widest == engine.info.drafts + 1
    for stream in coming:
        engine.close(stream)


def test_the_watch_sees_what_would_wait() -> None:
    x = torch.arange(4)
    for work, looks, reads in (
        (lambda: x.sum().item(), True, True),
        (lambda: x.tolist(), False, True),
        (lambda: bool(x.any()), True, True),
        (lambda: float(x[0]), True, True),
        (lambda: x[x > 1], True, False),
        (lambda: x.nonzero(), True, False),
        (lambda: x.repeat_interleave(x), True, False),
        (lambda: x.clone().masked_select(x > 1), True, False),
        (lambda: torch.where(x > 1, x, 0)[x], False, False),
    ):
        seen = watched(work)
        assert (bool(seen[0]), bool(seen[1])) == (looks, reads), seen
