"""Engines over the golden model, opened once: streams that a test leaves open are its fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine.torch_engine import TorchEngine
from tests.cpu.driving import opened, variant


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small models gain nothing from more, and spinning threads of several processes wait long."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_engine() -> TorchEngine:
    return opened()


@pytest.fixture
def engine(shared_engine: TorchEngine) -> Iterator[TorchEngine]:
    """Eight lanes of 320 tokens; every row from position 19 on may drop keys."""
    yield shared_engine
    for stream in list(shared_engine.streams):
        shared_engine.close(stream)
    for kept in list(shared_engine.storage.kept):
        shared_engine.storage.drop(kept)
    assert shared_engine.memory().used == 0


@pytest.fixture(scope="session")
def saturated(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    """Half of the heads' gates stand at their bound of -5, the others' at 0: nothing is lost."""

    def change(name: str, tensor: Tensor) -> Tensor:
        if name.endswith("A_log"):
            return torch.full_like(tensor, 3.0)
        if name.endswith("dt_bias"):
            return torch.where(torch.arange(len(tensor)) % 32 < 16, 50.0, -50.0)
        return tensor

    return opened(variant(tmp_path_factory.mktemp("saturated"), {}, change))


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    """An index of 64 tokens: rows near the start keep everything whatever the index says."""
    return opened(variant(tmp_path_factory.mktemp("wide"), {"index_topk": 64}))
