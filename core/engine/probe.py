"""The op calls that a model really makes: a few forwards over made-up rows, recorded.

Prompts and windows, at the context's start and near its end, over pages and lanes of noise that
are zeroed afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.engine import batch, optable
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.optable import Call, Candidates
from tensorfold.core.engine.state import Seat, Storage
from tensorfold.core.family_api import Model, Read
from tensorfold.core.ops import Ops
from tensorfold.core.state_spec import PerToken

# Rows of a probing prompt at most: whole grid blocks and a short one.
PROMPT_ROWS = 264
STREAMS = 8
WINDOW_ROWS = 2
# Longest context that is probed; ops look at longer ones in runs of what is probed here.
CONTEXT = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What decides which shapes a model's forwards have."""

    tile: int
    context: int
    vocab_size: int
    window_rows: int
    shortcut: bool = False


def model_calls(
    model_of: Callable[[Ops], Model], candidates: Candidates, storage: Storage, sizes: Sizes
) -> list[Call]:
    """Every distinct call of an op, by name and shapes, with the arguments of its first time; of
    ops that no library product may serve there is nothing to know."""
    if not any(choices[0].library for choices in candidates.values()):
        return []
    held = (*storage.buffers.values(), storage.table)
    volatile = {buffer.untyped_storage().data_ptr() for buffer in held}
    calls: dict[tuple[Any, ...], Call] = {}
    exercise(model_of(optable.recording(candidates, calls, volatile)), storage, sizes)
    return list(calls.values())


def exercise(model: Model, storage: Storage, sizes: Sizes) -> None:
    """Run forwards of every kind and width; storage is left as it was, all zero."""
    generator = torch.Generator().manual_seed(0)
    context = min(sizes.context, CONTEXT)
    seats = [storage.claim(context) for _ in range(min(storage.lanes, STREAMS))]
    touched = list(touched_rows(storage, seats))
    for rows in touched:
        rows.copy_(torch.randn(rows.shape, generator=generator))
    try:
        length = min(PROMPT_ROWS, context)
        page = storage.spec.page
        tokens = torch.randint(0, sizes.vocab_size, (length,), generator=generator).tolist()

        def forward(
            runs: list[Run], prompt: bool, ahead: int | None = None, sure: bool = True
        ) -> None:
            built = batch.build(runs, storage, prompt=prompt, tile=sizes.tile, context=context)
            built = built._replace(sure=sure)
            if ahead is not None:
                built = built._replace(reads=tuple(Read(len(run.tokens), ahead) for run in runs))
            hidden_RD = model.prompt(built) if prompt else model.window(built)
            if not prompt:
                # Of memory of its own, as rounds give it: a compiler tells views apart.
                model.settle(built, built.count_B.clone())
            model.logits(hidden_RD)

        for start in sorted({0, (context - length) // page * page}):
            forward([Run(tokens, seats[0].lane, start)], True)
        # As prompts run where not all of them is read: up to their end, and far before it.
        for ahead in (0, context) if sizes.shortcut else ():
            forward([Run(tokens, seats[0].lane, 0)], True, ahead)
        window = tokens[: min(WINDOW_ROWS, sizes.window_rows, context)]
        # One block and one stream, whose sizes of one are shapes of their own to a compiler, and
        # several prompts at once; rows that are drawn with noise may be run again.
        forward([Run(tokens[: page // 2], seats[0].lane, 0)], True)
        if len(seats) > 1:
            forward([Run(tokens[: page // 2], seat.lane, 0) for seat in seats], True)
        for some in (seats[:1], seats):
            for sure in (True, False):
                forward([Run(window[:1], seat.lane, 0) for seat in some], False, sure=sure)
            forward([Run(window, seat.lane, 0) for seat in some], False)
        # Every size that visible tokens are rounded up to, since lists are made as wide.
        for width in batch.widths(context):
            start = min(width, context) - len(window)
            forward([Run(window, seat.lane, start) for seat in seats], False)
            forward([Run(window[:1], seat.lane, start) for seat in seats], False)
    finally:
        for seat in seats:
            storage.release(seat)
        for rows in touched:
            rows.zero_()
        storage.peak = 0


def touched_rows(storage: Storage, seats: Sequence[Seat]) -> Iterator[Tensor]:
    """Views of everything that these seats and padding rows read or write."""
    pages = [page for seat in seats for page in seat.pages]
    for entry in storage.spec.entries:
        buffer = storage.buffers[entry.name]
        if not isinstance(entry, PerToken):
            yield buffer
            continue
        per_page = storage.spec.page // entry.every
        yield buffer[min(pages) * per_page : (max(pages) + 1) * per_page]
        yield buffer[storage.spare_page * per_page :]
