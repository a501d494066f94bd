"""A start's forwards, and those of prompts to come, with every op's outputs zero.

It is what a device would be asked to run and no more: one that holds its launches back learns from
it which kernels serving needs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.packing import FEW, STEP
from tensorfold.core.engine.probe import Sizes
from tensorfold.core.engine.sampling import CANDIDATES, HEAD, Cuts, Noisy, Reach, draw_rows, tell
from tensorfold.core.engine.state import Storage
from tensorfold.core.family_api import Model
from tensorfold.core.ops import SPECS, Ops

# Rows of prompts between those of a start's check: kernels are cut otherwise for few and for many.
# Few rows are rounded up where prompts are captured.
LENGTHS = (2, 17, 66, 130, 200, 260, 400, *range(STEP, FEW + 1, STEP), 700, 1100, 1600, 3000, 5000)
# Of rows that end at every width: few of them, and many.
ENDING = (17, 130)


def zeroed(ops: Ops) -> Ops:
    """The same table, whose outputs are set to zero."""
    return replace(ops, **{spec.name: zeroing(getattr(ops, spec.name)) for spec in SPECS})


def zeroing(call: Callable[..., Any]) -> Callable[..., Any]:
    """An op whose outputs are set to zero: nothing may have written them, and what follows takes
    some of them as places."""

    @functools.wraps(call)
    def run(*args: Any) -> Any:
        result = call(*args)
        for part in result if isinstance(result, tuple) else (result,):
            part.zero_()
        return result

    return run


def lengths(model: Model, storage: Storage, sizes: Sizes, most_prompt: int) -> None:
    """Prompts of many lengths, and the last rows before every size of the context."""
    context, page = sizes.context, storage.spec.page
    seat = storage.claim(context)

    def forward(rows: int, start: int, prompt: bool) -> None:
        runs = [Run([0] * rows, seat.lane, start)]
        built = batch.build(runs, storage, prompt=prompt, tile=sizes.tile, context=context)
        hidden_RD = model.prompt(built) if prompt else model.window(built)
        if not prompt:
            model.settle(built, torch.ones_like(built.count_B))
        model.logits(hidden_RD[-sizes.tile :])

    try:
        for rows in fitting(LENGTHS, min(most_prompt, context)):
            forward(rows, 0, True)
        for width in batch.widths(context):
            for rows in fitting(ENDING, min(most_prompt, width)):
                start = (width - rows) // page * page
                forward(min(rows, width - start), start, True)
            forward(1, width - 1, False)
    finally:
        storage.release(seat)


def draws(ops: Ops, logits_SV: Tensor) -> None:
    """Rows that ask for all that a draw can look at: noise of few tokens and of all of them, cuts,
    and log-probabilities."""
    rows, vocab_size = logits_SV.shape
    row_S = torch.arange(rows, device=logits_SV.device)
    half_S = torch.full((rows,), 0.5, dtype=torch.float64, device=logits_SV.device)
    noisy, cuts = Noisy(row_S, row_S, half_S), Cuts(row_S, row_S, half_S, half_S)
    for candidates in (CANDIDATES, vocab_size):
        draw_rows(ops, logits_SV, noisy, cuts, Reach(HEAD, candidates))
    tell(ops, logits_SV, row_S, 1)


def fitting(wanted: Sequence[int], most: int) -> list[int]:
    return [rows for rows in wanted if rows <= most]
