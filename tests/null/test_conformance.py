"""The conformance kit: what keeps the promises passes, and each way to break one is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from tensorfold.backends.fake import plugin as fake_plugin
from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import FakeOptions
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.copies import Copies
from tensorfold.core.drafter_api import Guesses
from tensorfold.core.engine_api import Filled, Landed, Opened, Opening, Piece, Saved, Window
from tensorfold.core.settings import Settings
from tensorfold.plugins import builtin, hookimpl
from tensorfold.plugins.testing import PromiseBroken, check_drafter, check_engine, check_plugin

OPTIONS = FakeOptions(lanes=4, context=256, chunk_rows=64, pack_rows=128, drafts=3)


def test_the_fake_engine_keeps_every_promise_at_its_settings_own_sizes() -> None:
    (backend,) = check_plugin(fake_plugin).backends.values()
    engine = backend.value.engine(EngineOrder(settings=Settings()))
    assert all(check_engine(engine).values())


@pytest.mark.parametrize(
    ("options", "untold"),
    [
        ({}, set()),
        ({"lanes": 1}, {"packed = alone", "concurrent = solo"}),
        ({"window_rows": 1}, {"drafted = undrafted", "forced = masked"}),
        ({"window_rows": 2, "drafts": 1}, {"forced = masked"}),
        ({"pack_rows": 0}, {"packed = alone"}),
        ({"passes": 1}, {"packed = alone"}),
        ({"round_rows": 5}, set()),
    ],
)
def test_what_an_engine_has_no_room_for_is_told_as_not_compared(
    options: dict[str, Any], untold: set[str]
) -> None:
    found = check_engine(FakeEngine(replace(OPTIONS, **options)))
    assert {name for name, compared in found.items() if not compared} == untold


class Sick(FakeEngine):
    """A fake engine that breaks a promise in one of its results."""

    def run_window(self, window: Window) -> Landed:
        landed = super().run_window(window)
        (token,) = landed.tokens[-1:]
        other = (token + 1) % self.info.vocab_size
        return self.sick(window, landed, (*landed.tokens[:-1], other))

    def sick(self, window: Window, landed: Landed, other: tuple[int, ...]) -> Landed:
        return landed

    def told(self, landed: Landed, other: tuple[int, ...]) -> Landed:
        """Another token, with a log-probability of its own."""
        self.streams[landed.stream].pending = other[-1]
        last = replace(landed.logprobs[-1], token=other[-1])
        return replace(landed, tokens=other, logprobs=(*landed.logprobs[:-1], last))


class ByCompany(Sick):
    def sick(self, window: Window, landed: Landed, other: tuple[int, ...]) -> Landed:
        return self.told(landed, other) if len(self.streams) > 1 else landed


class ByWidth(Sick):
    def sick(self, window: Window, landed: Landed, other: tuple[int, ...]) -> Landed:
        wide = len(window.tokens) > 1 and not window.forced
        return self.told(landed, other) if wide else landed


class ByLogprob(Sick):
    """Its log-probabilities alone tell who shared the round."""

    def sick(self, window: Window, landed: Landed, other: tuple[int, ...]) -> Landed:
        if len(self.streams) < 2:
            return landed
        last = replace(landed.logprobs[-1], logprob=landed.logprobs[-1].logprob - 1e-7)
        return replace(landed, logprobs=(*landed.logprobs[:-1], last))


class Unforced(Sick):
    def sick(self, window: Window, landed: Landed, other: tuple[int, ...]) -> Landed:
        return self.told(landed, other) if window.forced else landed


class Counting(Sick):
    """Its draws depend on how many streams it has ever had."""

    def sick(self, window: Window, landed: Landed, other: tuple[int, ...]) -> Landed:
        return self.told(landed, other) if self.counts["open"] > 12 else landed


class ByPiece(FakeEngine):
    def run_piece(self, piece: Piece) -> Filled:
        filled = super().run_piece(piece)
        if filled.logprob is None or piece.start % self.info.chunk_rows == 0:
            return filled
        return replace(filled, logprob=replace(filled.logprob, logprob=-1.0))


class ByPack(FakeEngine):
    packing = False

    def fill(self, pieces: Sequence[Piece]) -> Any:
        self.packing = len(pieces) > 1
        return super().fill(pieces)

    def run_piece(self, piece: Piece) -> Filled:
        filled = super().run_piece(piece)
        if filled.logprob is None or not self.packing:
            return filled
        return replace(filled, logprob=replace(filled.logprob, logprob=-1.0))


class Forgetful(FakeEngine):
    """Goes on from a state without its last row's token in it."""

    def open(self, opening: Opening) -> Opened:
        opened = super().open(opening)
        if opened.cached:
            self.streams[opening.stream].total += 1
        return opened


class Confused(FakeEngine):
    """Takes any kept state for its prompt's beginning."""

    def resumed(self, opening: Opening) -> tuple[tuple[int, ...], str | None]:
        if opening.resume is None:
            return (), None
        return self.kept[opening.resume.id][: len(opening.prompt) - 1], None


class Hoarding(FakeEngine):
    def drop(self, saved: Saved) -> None:
        rows = self.kept[saved.id]
        super().drop(saved)
        self.kept[-saved.id] = rows


class Unordered(FakeEngine):
    def round(self, windows: Sequence[Window]) -> Any:
        return super().round(windows[::-1])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ByCompany, "packed"),
        (ByWidth, "guesses"),
        (ByLogprob, "packed: other log-probabilities"),
        (Unforced, "lacks forced|against forced together"),
        (Counting, "again|in pieces"),
        (ByPiece, "in pieces of 16 rows: other log-probabilities"),
        (ByPack, "packed: other log-probabilities"),
        (Forgetful, "from row 16"),
        (Confused, "is no place to go on|of another beginning"),
        (Hoarding, "are in use after the last close"),
        (Unordered, "order"),
    ],
)
def test_an_engine_that_breaks_a_promise_is_told_how(kind: type[FakeEngine], words: str) -> None:
    with pytest.raises(PromiseBroken, match=words):
        check_engine(kind(OPTIONS))


def test_what_differs_in_company_alone_is_told_without_packs() -> None:
    with pytest.raises(PromiseBroken, match="among 4"):
        check_engine(ByCompany(replace(OPTIONS, pack_rows=0)))


# -- drafters ----------------------------------------------------------------------------------


def test_copies_keep_a_drafters_words_and_guess_right_in_a_loop() -> None:
    assert check_drafter(Copies()) > 100


class Guessing:
    """A drafter whose streams answer as they are told to."""

    name, summary = "mine", "for a test"
    shared: int = 0

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def begin(self) -> Any:
        return self

    def propose(self, context: Sequence[int], most: int) -> Guesses:
        answer: Guesses = self.answer(self, context, most)
        return answer

    def landed(self, accepted: int) -> None:
        self.shared += accepted + 1

    def rest(self, context: Sequence[int]) -> None:
        return None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda self, context, most: Guesses([1] * (most + 1), [0.5] * (most + 1)), "were asked"),
        (lambda self, context, most: Guesses([1], []), "1 guesses with 0 chances"),
        (lambda self, context, most: Guesses([-1], [0.5]), "is no token"),
        (lambda self, context, most: Guesses([1.0], [0.5]), "is no token"),
        (lambda self, context, most: Guesses([1], [1.5]), "is not in 0 to 1"),
        (lambda self, context, most: Guesses([1], [float("nan")]), "is not in 0 to 1"),
        (lambda self, context, most: Guesses([self.shared % 7], [0.5]), "beside another"),
    ],
)
def test_a_drafter_that_breaks_its_words_is_told_how(answer: Any, words: str) -> None:
    with pytest.raises(PromiseBroken, match=words):
        check_drafter(Guessing(answer))


# -- plugins -----------------------------------------------------------------------------------


def test_a_plugin_that_fails_or_claims_a_name_twice_is_told_how() -> None:
    assert set(check_plugin(builtin).drafters) == {"copies"}
    with pytest.raises(PromiseBroken, match="plugin nothing: it implements no hook"):
        check_plugin(ModuleType("nothing"))
    twice = ModuleType("twice")
    vars(twice)["register_drafters"] = hookimpl(lambda: [Copies(), Copies()])
    with pytest.raises(PromiseBroken, match="plugin twice claims 'copies' twice"):
        check_plugin(twice)
