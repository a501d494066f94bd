"""What a prompt's forward is told of its rows: each row's token and the one after it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest

from tensorfold.core.engine.packing import host_blocks, layout
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece
from tests.cpu.driving import opened, some_tokens

# Prompts' lengths, and the rows of each in one forward.
FORWARDS: list[list[tuple[int, int, int]]] = [
    [(1, 0, 1)],
    [(2, 0, 2)],
    [(63, 0, 63)],
    [(65, 0, 64)],
    [(65, 64, 65)],
    [(200, 0, 64)],
    [(200, 64, 192)],
    [(200, 128, 200)],
    [(1, 0, 1), (1, 0, 1)],
    [(64, 0, 64), (1, 0, 1), (65, 0, 65), (3, 0, 3)],
]


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return opened()


def begun(engine: TorchEngine, forward: Sequence[tuple[int, int, int]]) -> list[Piece]:
    pieces = []
    for stream, (length, start, end) in enumerate(forward):
        prompt = tuple(some_tokens(length, seed=stream + length))
        engine.open(Opening(stream=stream, prompt=prompt, most=1))
        pieces.append(Piece(stream=stream, start=start, end=end))
    return pieces


@pytest.mark.parametrize("forward", FORWARDS, ids=str)
def test_every_row_has_its_token_and_the_one_after_it(
    engine: TorchEngine, forward: Sequence[tuple[int, int, int]]
) -> None:
    pieces = begun(engine, forward)
    try:
        order = engine.prompting.order(engine.streams, pieces, exact=False)
        blocks = host_blocks(order.words, layout(order.shape, engine.prompting.sizes))
        ids, after = [], []
        for piece in pieces:
            prompt = engine.streams[piece.stream].opening.prompt
            ids += prompt[piece.start : piece.end]
            # Nothing is known of what comes after a prompt, nor after padding.
            after += (*prompt, 0)[piece.start + 1 : piece.end + 1]
        missing = [0] * (order.shape.rows - len(ids))
        assert blocks["row"][0].tolist() == ids + missing
        assert blocks["following"].tolist() == after + missing
    finally:
        for piece in pieces:
            engine.close(piece.stream)


def test_a_chunk_takes_no_step_a_row(engine: TorchEngine) -> None:
    def steps(rows: int) -> int:
        """Lines of Python that a forward of so many rows takes to be told."""
        count = 0

        def watch(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal count
            count += event == "line"
            return watch

        pieces = begun(engine, [(300, 0, rows)])
        # What comes once.
        engine.prompting.order(engine.streams, pieces, exact=False)
        before = sys.gettrace()
        sys.settrace(watch)
        try:
            engine.prompting.order(engine.streams, pieces, exact=False)
        finally:
            sys.settrace(before)
            engine.close(0)
        return count

    assert steps(256) - steps(64) < 20
