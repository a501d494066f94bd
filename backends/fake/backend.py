"""The fake backend: a whole engine without torch or a family, for tests and for the simulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tensorfold.backends.fake import model
from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import FakeOptions
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine_api import Engine, Opening, Piece, Sampling, Window
from tensorfold.core.errors import StartError
from tensorfold.core.fill_settings import fill_fields

CONTEXT = 4096
GRID = 16
PACK_ROWS = 4096


class FakeBackend:
    name = "fake"
    summary = "integers in place of a model; no torch, no family"
    needs_family = False

    def unusable(self) -> str | None:
        return None

    def bundled(self) -> Path | None:
        return Path(__file__).parent / "tiny"

    def engine(self, order: EngineOrder) -> Engine:
        settings = order.settings
        if settings.chunk_rows % GRID:
            raise StartError(
                f"TF_CHUNK_ROWS is {settings.chunk_rows}, not a multiple of the grid, {GRID}"
            )
        context = settings.context or CONTEXT
        fills = fill_fields(
            settings,
            context=context,
            chunk_rows=settings.chunk_rows,
            passes=0,
            pack_rows=PACK_ROWS,
        )
        return FakeEngine(
            FakeOptions(
                lanes=settings.lanes,
                context=context,
                chunk_rows=settings.chunk_rows,
                window_rows=settings.window_rows,
                grid=GRID,
                pack_rows=PACK_ROWS,
                fills=fills,
            )
        )

    def check(self, report: Callable[[str], None]) -> bool:
        """Its promises on one prompt: in pieces as whole, in windows as token by token."""
        sampled = Sampling(temperature=1.0)
        checks = {
            "pieces": pieces_equal_whole(Sampling()),
            "pieces sampled": pieces_equal_whole(sampled),
            "windows": windows_equal_rows(Sampling()),
            "windows sampled": windows_equal_rows(sampled),
        }
        for name, holds in checks.items():
            report(f"fake {name}: {'holds' if holds else 'FAILS'}")
        good = sum(checks.values())
        report(f"SUMMARY fake: {good} checks hold, {len(checks) - good} fail")
        return good == len(checks)


def opening_of(stream: int, sampling: Sampling) -> Opening:
    prompt = tuple((7 * row + 5) % model.VOCAB for row in range(50))
    return Opening(stream=stream, prompt=prompt, most=64, sampling=sampling, seed=stream)


def engine_with(opening: Opening, cuts: tuple[int, ...]) -> tuple[FakeEngine, int, tuple[int, ...]]:
    """An engine in which a prompt went in, cut there; its first token and drafts."""
    engine = FakeEngine(FakeOptions(drafts=4))
    engine.open(opening)
    start = 0
    for end in (*cuts, len(opening.prompt)):
        piece = Piece(stream=opening.stream, start=start, end=end, want=4)
        (filled,) = engine.fill([piece]).land()
        start = end
    assert filled.token is not None
    return engine, filled.token, filled.drafts


def pieces_equal_whole(sampling: Sampling) -> bool:
    opening = opening_of(1, sampling)
    firsts = [engine_with(opening, cuts)[1:] for cuts in ((), (16,), (16, 32, 48))]
    return firsts.count(firsts[0]) == len(firsts)


def windows_equal_rows(sampling: Sampling) -> bool:
    """A reply in drafted windows is the reply that the definition gives."""
    opening = opening_of(2, sampling)
    engine, token, guesses = engine_with(opening, ())
    tokens = [token]
    while len(tokens) < opening.most - 8:
        window = Window(stream=opening.stream, tokens=(tokens[-1], *guesses), want=4)
        (landed,) = engine.round([window]).land()
        tokens.extend(landed.tokens)
        guesses = landed.drafts
    return tokens == model.reply(opening, len(tokens))
