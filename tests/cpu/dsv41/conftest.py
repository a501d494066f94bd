"""dsv41's golden model in both arithmetics, opened once each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensorfold.core.engine.torch_engine import TorchEngine
from tests.cpu.dsv41.engines import MODES, opened


@pytest.fixture(scope="session", params=MODES)
def shared(request: pytest.FixtureRequest) -> TorchEngine:
    return opened(request.param)


@pytest.fixture
def engine(shared: TorchEngine) -> Iterator[TorchEngine]:
    """Eight lanes of 320 tokens: the window wraps at 8, and blocks are masked from row 6 on."""
    yield shared
    for stream in list(shared.streams):
        shared.close(stream)
    for kept in list(shared.storage.kept):
        shared.storage.drop(kept)
    assert shared.memory().used == 0
