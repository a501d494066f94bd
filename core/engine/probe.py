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
from tensorfold.core.engine.index_split import split_of
from tensorfold.core.engine.optable import Call, Candidates
from tensorfold.core.engine.state import Seat, Storage
from tensorfold.core.family_api import LeavesOut, Model, Read, Rows, RowSplit
from tensorfold.core.index_shares import COST
from tensorfold.core.ops import Ops
from tensorfold.core.share import Share
from tensorfold.core.state_spec import PerToken

# Rows of a probing prompt at most: whole grid blocks and a short one.
PROMPT_ROWS = 264
STREAMS = 8
WINDOW_ROWS = 2
# Longest context that is probed; ops look at longer ones in runs of what is probed here.
CONTEXT = 8192
WHOLE = Share()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What decides which shapes a model's forwards have; `share` is a rank's of an index that ranks
    may split."""

    tile: int
    context: int
    vocab_size: int
    window_rows: int
    shortcut: bool = False
    share: Share = WHOLE


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
            runs: list[Run],
            prompt: bool,
            ahead: int | None = None,
            sure: bool = True,
            split: bool = False,
        ) -> None:
            built = batch.build(runs, storage, prompt=prompt, tile=sizes.tile, context=context)
            built = built._replace(sure=sure)
            if split:
                built = built._replace(split=split_rows(runs[0], built, sizes.share))
            if ahead is not None:
                built = built._replace(reads=tuple(Read(len(run.tokens), ahead) for run in runs))
            hidden_RD = model.prompt(built) if prompt else model.window(built)
            if not prompt:
                # Of memory of its own, as rounds give it: a compiler tells views apart.
                model.settle(built, built.count_B.clone())
            model.logits(hidden_RD)

        late = (context - length) // page * page
        for start in sorted({0, late}):
            forward([Run(tokens, seats[0].lane, start)], True)
        # As prompts run where not all of them is read: up to their end, and before it.
        aheads = aheads_of(model, context) if sizes.shortcut else []
        for ahead in aheads:
            forward([Run(tokens, seats[0].lane, 0)], True, ahead)
        # All of it once more, as ranks run it that share the index: they ask one another in it.
        for unread in (None, *aheads) if sizes.share.ranks > 1 else ():
            forward([Run(tokens, seats[0].lane, late)], True, unread, split=True)
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


def aheads_of(model: Model, context: int) -> list[int]:
    """`Read.ahead` of prompts, of which each is run another part of the way."""
    own = model.aheads() if isinstance(model, LeavesOut) else ()
    return sorted({0, *(ahead for ahead in own if ahead < context), context})


def split_rows(run: Run, built: Rows, share: Share) -> RowSplit:
    return split_of(COST, run.start, len(run.tokens), built.ids_R.shape[0], share)


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
