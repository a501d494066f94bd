"""A round that is run again because a draw was unsure leaves what one with every draw sure does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorfold.core.engine import sampling
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Sampling, Window
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


def heads(
    engine: TorchEngine, guesses: tuple[int, ...] = (), others: tuple[Sampling, ...] = ()
) -> list[int]:
    """How far a reply's cuts are looked for, round by round; the guesses are wrong in each, and
    the others' windows come before its own."""
    hows = [*others, Sampling(temperature=1.0, top_p=0.95)]
    pending = []
    for stream, how in enumerate(hows):
        engine.open(Opening(stream=stream, prompt=tuple(some_tokens(20)), most=60, sampling=how))
        (filled,) = engine.fill([Piece(stream=stream, start=0, end=20)]).land()
        assert filled.token is not None
        pending.append(filled.token)
    found = []
    for _ in range(40):
        windows = [
            Window(stream=stream, tokens=(token, *guesses)) for stream, token in enumerate(pending)
        ]
        landed = engine.round(windows).land()
        pending = [token for one in landed for token in one.tokens]
        assert len(pending) == len(hows)
        found.append(engine.streams[len(others)].head)
    for stream in range(len(hows)):
        engine.close(stream)
    return found


def test_a_stream_learns_from_its_own_rows_and_not_from_those_behind_a_wrong_guess(
    engines: tuple[TorchEngine, TorchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "HEAD", 2)
    monkeypatch.setattr(sampling, "OPEN_HEAD", 2)
    plain = heads(engines[0])
    assert len(set(plain)) > 2
    assert heads(engines[0], guesses=(250, 251, 252)) == plain
    assert heads(engines[0], others=(Sampling(),)) == plain
