"""Rounds of nobody at the end of a start, so that what a first round makes is there."""

from __future__ import annotations

from tensorfold.core.backend_api import Progress
from tensorfold.core.engine.agreement import round_sizes
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Window


def warm(engine: TorchEngine, progress: Progress) -> None:
    """Run a round of 1, 2, 4 and more streams, so that what a first round makes is there."""
    info = engine.info
    counts = [1, *(count for count in round_sizes(info.lanes) if count > 1)]
    for done, count in enumerate(counts):
        progress("warming rounds", done, len(counts))
        streams = range(count)
        for stream in streams:
            engine.open(Opening(stream=stream, prompt=(0,), most=1))
            engine.fill([Piece(stream=stream, start=0, end=1)]).land()
        engine.round([Window(stream=stream, tokens=(0,)) for stream in streams]).land()
        for stream in streams:
            engine.close(stream)
    engine.storage.peak = 0
