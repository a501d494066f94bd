"""A round that is run again because a draw was unsure leaves what one with every draw sure does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling
from tests.cpu.driving import Asked, alone, opened, some_tokens

TINY = Path(__file__).parents[2] / "families" / "glm53" / "tiny"
SIZES = {"context": 512, "chunk_rows": 512, "lanes": 4}


@pytest.fixture(scope="module")
def engines() -> tuple[TorchEngine, TorchEngine]:
    """One whose draws may be unsure at first, and one whose rounds reach everything at once."""
    quick, exact = opened(TINY, **SIZES), opened(TINY, **SIZES)
    launch = exact.launch_windows
    exact.launch_windows = (  # type: ignore[method-assign]
        lambda windows, coming, *, exact: launch(windows, coming, exact=True)
    )
    return quick, exact


@pytest.mark.parametrize("top_p", [0.95, 0.99])
def test_a_reply_with_rounds_that_were_run_again_is_the_reply_without(
    engines: tuple[TorchEngine, TorchEngine], top_p: float
) -> None:
    quick, exact = engines
    before = quick.redone
    for seed in range(6):
        asked = Asked(
            prompt=tuple(3 * token for token in some_tokens(20, seed)),
            most=40,
            sampling=Sampling(temperature=1.0, top_p=top_p),
            seed=seed,
        )
        assert alone(quick, asked).proof() == alone(exact, asked).proof()
    assert quick.redone > before
    assert exact.redone == 0
