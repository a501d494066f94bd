"""Rounds that run ahead: launched as soon as the one before has landed, before they are asked for.

The lane host says of a window that its stream goes on plainly (`Window.goes_on`). Where all of a
round's do, the next round's words are known but for the tokens, which the round itself gives, and
the device need not wait for the host to have read them. What comes of it is given when it is asked
for: a row's result is the same in any company, so that it holds for the streams that are still
there, whoever has left, and whatever was run in between.

Ranks run the same rounds ahead: all that decides is the calls and their results, which are the same
on all, and `waits`, which is asked last and which rank 0 answers for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tensorfold.core.engine.asking import Stream
from tensorfold.core.engine.ordering import KeptRound, Order
from tensorfold.core.engine.packing import Shape
from tensorfold.core.engine.runner import Ready, Wait
from tensorfold.core.engine_api import Landed, Window, nobody


class Launched(NamedTuple):
    """A round in flight: its order, its windows, their streams, and what waits for its words."""

    order: Order
    windows: Sequence[Window]
    own: list[Stream]
    wait: Wait


class Ahead:
    """The round that runs ahead, if one does, and results of streams that have not asked yet.

    `waits`: as in `engine_api.Flight`, of the flight that is landing. `may`: whether any round runs
    ahead at all, the same on all ranks.
    """

    def __init__(self, may: bool) -> None:
        self.may = may
        self.waits: Callable[[], bool] = nobody
        self.round: Launched | None = None
        self.results: dict[int, tuple[Window, Landed]] = {}

    def launching(
        self, launched: Launched, kept: KeptRound, ready: Ready
    ) -> Callable[[np.ndarray], np.ndarray]:
        """What launches the kept round on the words of the one before."""
        own = launched.own
        nexts, unsure = places(launched.order.shape, len(own))
        id_R = kept.moving.id_R

        def launch(words: np.ndarray) -> np.ndarray:
            # Such a draw is made again first.
            if any(words[unsure].tolist()) or self.waits():
                return words
            words = words.copy()
            id_R[:] = words[nexts]
            wait = ready()
            windows = [
                Window(stream=window.stream, tokens=(token,))
                for window, token in zip(launched.windows, words[nexts].tolist(), strict=True)
            ]
            self.round = Launched(kept.order, windows, own, wait)
            return words

        return launch

    def taken(self, windows: Sequence[Window], streams: Mapping[int, Stream]) -> Launched | None:
        """The round that runs ahead if it is the one that is asked for now: its own streams in
        order, less those that were closed."""
        launched = self.round
        if launched is None:
            return None
        there = [
            window
            for window, stream in zip(launched.windows, launched.own, strict=True)
            if streams.get(window.stream) is stream
        ]
        if [window.stream for window in there] != [window.stream for window in windows]:
            return None
        assert_foreseen(there, windows)
        self.round = None
        return launched

    def keep(
        self, launched: Launched, found: Sequence[Landed | None], streams: Mapping[int, Stream]
    ) -> None:
        """What a round gave that another one was asked instead of; nothing was done to streams
        whose draws were unsure, nor is anything kept of closed ones."""
        for window, stream, landed in zip(launched.windows, launched.own, found, strict=True):
            if landed is not None and streams.get(window.stream) is stream:
                self.results[window.stream] = window, landed

    def given(self, windows: Sequence[Window]) -> dict[int, Landed]:
        """The results of streams that are there already, by stream."""
        if not self.results:
            return {}
        asked = [window for window in windows if window.stream in self.results]
        held = [self.results.pop(window.stream) for window in asked]
        assert_foreseen([window for window, _ in held], asked)
        return {landed.stream: landed for _, landed in held}

    def forget(self, stream: int) -> None:
        self.results.pop(stream, None)


def assert_foreseen(foreseen: Sequence[Window], asked: Sequence[Window]) -> None:
    for one, other in zip(foreseen, asked, strict=True):
        assert one == other, (one, other, "the window before it said that its stream goes on")


def places(shape: Shape, streams: int) -> tuple[slice, slice]:
    """Where a round's words have the next token of so many streams, and whether it is unsure.

    A stream at fault has some token: it is closed, and its next row is nobody's.
    """
    first, held = shape.streams, 3 * shape.streams
    return slice(first, first + streams), slice(held, held + streams if shape.noisy else held)
