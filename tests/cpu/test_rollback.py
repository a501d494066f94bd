"""Rejected rows leave no byte behind, in any buffer of either family and its drafter.

The state after a window of which some rows were rejected is that of a stream which never saw them,
as far as any later row can read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Landed, Opening, Piece, Sampling, Window
from tests.cpu.driving import VOCAB, live_rows, some_tokens
from tests.cpu.dsv41.engines import live
from tests.cpu.steps import family_engine

# Prompts whose replies begin at every place of an open pool, and across a page's end.
LENGTHS = (6, 61, 63)
MOST = 20


@pytest.fixture(scope="module", params=["mtp", "dspark"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    return family_engine(request.param, tmp_path_factory.mktemp(request.param))


def begun(engine: TorchEngine, stream: int, length: int) -> int:
    """An open stream with its prompt in; its first token."""
    prompt = tuple(some_tokens(length, seed=length))
    sampling = Sampling(temperature=1.0, top_p=0.95)
    engine.open(Opening(stream=stream, prompt=prompt, most=MOST, sampling=sampling, seed=length))
    (filled,) = engine.fill(
        [Piece(stream=stream, start=0, end=length, want=engine.info.drafts)]
    ).land()
    assert filled.token is not None
    return filled.token


def round_of(engine: TorchEngine, stream: int, tokens: Sequence[int]) -> Landed:
    window = Window(stream=stream, tokens=tuple(tokens), want=engine.info.drafts)
    (landed,) = engine.round([window]).land()
    assert landed.fault is None
    return landed


def state_of(engine: TorchEngine, stream: int) -> Mapping[str, Tensor]:
    """Everything of a stream that a row to come can read, by buffer."""
    held = engine.streams[stream]
    found = stream_state(engine.storage, held.seat, held.rows)
    if engine.info.family == "dsv41":
        return live(engine, found, held.rows)
    return live_rows(engine, found, held.rows)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_number_of_rejected_rows_of_every_window_leaves_every_buffer_as_it_was(
    engine: TorchEngine, length: int
) -> None:
    reply = [begun(engine, 0, length)]
    # The state after each number of accepted rows, of a stream that is given one row a round.
    wanted: list[Mapping[str, Tensor]] = []
    drafts: list[tuple[int, ...]] = []
    for _ in range(engine.info.window_rows):
        landed = round_of(engine, 0, reply[-1:])
        reply += landed.tokens
        wanted.append({name: part.clone() for name, part in state_of(engine, 0).items()})
        drafts.append(landed.drafts)
    engine.close(0)
    assert set(wanted[0]) == {entry.name for entry in engine.storage.spec.entries}
    for guesses in range(engine.info.window_rows):
        for right in range(guesses + 1):
            assert begun(engine, 1, length) == reply[0]
            wrong = [(token + 1) % VOCAB for token in reply[1 + right : 1 + guesses]]
            landed = round_of(engine, 1, [*reply[: 1 + right], *wrong])
            assert list(landed.tokens) == reply[1 : 2 + right], (guesses, right)
            assert landed.drafts == drafts[right], (guesses, right)
            found = state_of(engine, 1)
            for name, part in wanted[right].items():
                assert torch.equal(found[name], part), (name, guesses, right)
            engine.close(1)
