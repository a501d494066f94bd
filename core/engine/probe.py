"""The op calls that a model really makes: a few forwards over made-up rows, recorded.

Prompts and windows, at the context's start and near its end, over buffers of noise that are zeroed
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorfold.core.engine import batch, optable
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.optable import Call, Candidates
from tensorfold.core.engine.state import Storage
from tensorfold.core.family_api import Model
from tensorfold.core.ops import Ops

# Rows of a probing prompt: two whole grid blocks and a short one.
PROMPT_ROWS = 136
STREAMS = 8
WINDOW_ROWS = 2


def model_calls(
    model_of: Callable[[Ops], Model],
    candidates: Candidates,
    storage: Storage,
    *,
    tile: int,
    context: int,
    vocab_size: int,
    window_rows: int,
) -> list[Call]:
    """Every distinct call of an op, by name and shapes, with the arguments of its first time."""
    generator = torch.Generator().manual_seed(0)
    for buffer in storage.buffers.values():
        buffer.copy_(torch.randn(buffer.shape, generator=generator))
    volatile = {buffer.untyped_storage().data_ptr() for buffer in storage.buffers.values()}
    calls: dict[tuple[Any, ...], Call] = {}
    model = model_of(optable.recording(candidates, calls, volatile))
    seats = [storage.claim(context) for _ in range(min(storage.lanes, STREAMS))]
    try:
        rows = min(PROMPT_ROWS, context)
        page = storage.spec.page
        tokens = torch.randint(0, vocab_size, (rows,), generator=generator).tolist()

        def forward(runs: list[Run], prompt: bool) -> None:
            built = batch.build(runs, storage, prompt=prompt, tile=tile, context=context)
            hidden_RD = model.prompt(built) if prompt else model.window(built)
            if not prompt:
                model.settle(built, built.count_B)
            model.logits(hidden_RD)

        for start in sorted({0, (context - rows) // page * page}):
            forward([Run(tokens, seats[0].lane, start)], True)
        window = tokens[: min(WINDOW_ROWS, window_rows, context)]
        for start in sorted({0, context - len(window)}):
            forward([Run(window, seat.lane, start) for seat in seats], False)
            forward([Run(window[:1], seat.lane, start) for seat in seats], False)
    finally:
        for seat in seats:
            storage.release(seat)
        for buffer in storage.buffers.values():
            buffer.zero_()
        storage.peak = 0
    return list(calls.values())
