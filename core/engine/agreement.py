"""Do all sizes of a round and of a prompt give a row the same bits? Asked of the whole model.

Ops are checked one by one elsewhere; here is what a compiler made between them, on the sizes that
rounds are rounded to and on prompts from one row up. Nothing of a stream is there yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.index_split import split_of
from tensorfold.core.engine.packing import FEW, STEP
from tensorfold.core.engine.probe import CONTEXT, Sizes
from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.state import Storage
from tensorfold.core.family_api import Model, Read, Rows
from tensorfold.core.index_shares import HOW

# Rows of a prompt before the window whose bits are compared: a whole grid block and a short one.
BEFORE = 70
# Streams and blocks of padding beside a prompt whose rows are rounded up.
PADDING = 3


class Found(NamedTuple):
    """Rows of the sizes whose bits differ from the first size's, of rounds and of prompts; and the
    shares of a split index with which a chunk's do, none where ranks split none."""

    rounds: tuple[int, ...]
    prompts: tuple[int, ...]
    splits: tuple[str, ...] | None = None

    def checks(self) -> dict[str, bool | None]:
        found: dict[str, bool | None] = {
            "sizes:rounds": not self.rounds,
            "sizes:prompts": not self.prompts,
        }
        return found if self.splits is None else found | {"sizes:splits": not self.splits}

    def words(self) -> str:
        """What is wrong; empty where nothing is."""
        parts = [
            f"{kind} of {', '.join(map(str, sizes))} rows"
            for kind, sizes in (("rounds", self.rounds), ("prompts", self.prompts))
            if sizes
        ]
        parts += [f"chunks whose index is split by {how}" for how in self.splits or ()]
        return " and ".join(parts)


def round_sizes(most: int) -> list[int]:
    """Powers of two from 2 on."""
    return [1 << power for power in range(1, most.bit_length()) if 1 << power <= most] or [2]


def prompt_sizes(grid: int, most: int) -> list[int]:
    """The most rows, one row, and sizes around whole grid blocks."""
    wanted = (most, 1, grid - 1, grid, grid + 1, 2 * grid, 500)
    return [size for size in dict.fromkeys(wanted) if 0 < size <= most]


def sizes_agree(
    model: Model, storage: Storage, sizes: Sizes, *, most_rows: int, most_prompt: int
) -> Found:
    """`most_rows` of a round and `most_prompt` of a prompt's forward, which is also run as far as
    it is read where prompts are; prompts of few rows also rounded up, as a captured one is. Where
    ranks may split an index, a late chunk is run with it whole and split."""
    most_prompt = min(most_prompt, sizes.context)
    generator = torch.Generator().manual_seed(2)
    count = max(most_prompt, BEFORE) + 1
    tokens = torch.randint(0, sizes.vocab_size, (count,), generator=generator).tolist()
    before = min(BEFORE, sizes.context - sizes.window_rows, most_prompt)
    prompts = {
        size: prompt_row(model, storage, sizes, tokens[:size])
        for size in prompt_sizes(storage.spec.page, most_prompt)
    }
    rounds = {}
    for size in round_sizes(most_rows):
        if size <= largest_round(storage.lanes, sizes.window_rows):
            rounds[size] = window_row(model, storage, sizes, tokens, before, size)
    few = [
        size
        for size in prompts
        if size <= FEW and not rounded_agrees(model, storage, sizes, tokens[:size])
    ]
    splits = None
    if sizes.share.ranks > 1:
        splits = splits_differing(model, storage, sizes, tokens[: min(FEW, most_prompt)])
    found = Found(differing(rounds), tuple(dict.fromkeys([*differing(prompts), *few])), splits)
    most = min(most_prompt, sizes.context - 1)
    if not sizes.shortcut or most in found.prompts or most < 1:
        return found
    whole, short = (
        read_rows(model, storage, sizes, tokens[: most + 1], short=short) for short in (False, True)
    )
    agree = all(same(mine, theirs) for mine, theirs in zip(short, whole, strict=True))
    return found if agree else found._replace(prompts=(*found.prompts, most))


def largest_round(lanes: int, window_rows: int) -> int:
    """Rows of the largest round in which one of several streams has one row; with one lane, the
    other row is padding."""
    return 1 + (lanes - 1) * window_rows if lanes > 1 else 2


def differing(found: dict[int, tuple[Tensor, ...]]) -> tuple[int, ...]:
    """Sizes whose tensors are not the first size's; a prompt's rows are compared as far as both
    have them."""
    if not found:
        return ()
    first = next(iter(found.values()))
    return tuple(
        size
        for size, own in found.items()
        if not all(same(mine, theirs) for mine, theirs in zip(own, first, strict=True))
    )


def same(one: Tensor, other: Tensor) -> bool:
    rows = min(len(one), len(other))
    return torch.equal(one[:rows], other[:rows])


def built(runs: Sequence[Run], storage: Storage, sizes: Sizes, *, prompt: bool) -> Rows:
    tile = sizes.tile if prompt else max(2, sizes.tile)
    return batch.build(runs, storage, prompt=prompt, tile=tile, context=sizes.context)


def prompt_row(
    model: Model, storage: Storage, sizes: Sizes, tokens: Sequence[int]
) -> tuple[Tensor, ...]:
    """A prompt's hidden rows."""
    seat = storage.claim(len(tokens))
    try:
        rows = built([Run(tokens, seat.lane, 0)], storage, sizes, prompt=True)
        return (model.prompt(rows)[: len(tokens)].clone(),)
    finally:
        storage.release(seat)


def rounded_agrees(model: Model, storage: Storage, sizes: Sizes, tokens: Sequence[int]) -> bool:
    """Whether a prompt has the same hidden rows, and leaves the same state, beside padding."""

    def run(tile: int, padding: int) -> tuple[Tensor, ...]:
        seat = storage.claim(len(tokens))
        try:
            runs = [Run(tokens, seat.lane, 0)]
            rows = batch.build(runs, storage, prompt=True, tile=tile, context=sizes.context)
            rows = batch.with_padding(rows, storage, padding, padding)
            hidden_RD = model.prompt(rows)[: len(tokens)].clone()
            return hidden_RD, *stream_state(storage, seat, len(tokens)).values()
        finally:
            storage.release(seat)

    as_it_is, rounded = run(sizes.tile, 0), run(STEP, PADDING)
    return all(torch.equal(one, other) for one, other in zip(as_it_is, rounded, strict=True))


def splits_differing(
    model: Model, storage: Storage, sizes: Sizes, tokens: Sequence[int]
) -> tuple[str, ...]:
    """The ways to share an index with which a late chunk's hidden rows are others."""
    context = min(sizes.context, CONTEXT)
    late = (context - len(tokens)) // storage.spec.page * storage.spec.page
    seat = storage.claim(context)

    def run(start: int, how: str = "") -> Tensor:
        # The same state before every chunk: rows of tokens before it are only read.
        storage.clear(seat.lane)
        rows = built([Run(tokens, seat.lane, start)], storage, sizes, prompt=True)
        if how:
            total = rows.ids_R.shape[0]
            rows = rows._replace(split=split_of(how, start, len(tokens), total, sizes.share))
        return model.prompt(rows)[: len(tokens)].clone()

    try:
        run(0)
        whole = run(late)
        return tuple(how for how in HOW if not torch.equal(run(late, how), whole))
    finally:
        storage.release(seat)


def read_rows(
    model: Model, storage: Storage, sizes: Sizes, tokens: Sequence[int], *, short: bool
) -> tuple[Tensor, ...]:
    """The hidden row before a prompt's end and the one behind it, of a prompt that runs whole or,
    if `short`, as far as it is read."""
    length = len(tokens) - 1
    seat = storage.claim(length + 1)
    try:
        rows = built([Run(tokens[:length], seat.lane, 0)], storage, sizes, prompt=True)
        rows = rows._replace(reads=(Read(length, 0),)) if short else rows
        last_D = model.prompt(rows)[length - 1 : length].clone()
        rows = built([Run(tokens[length:], seat.lane, length)], storage, sizes, prompt=False)
        next_D = model.window(rows)[:1].clone()
        model.settle(rows, torch.ones_like(rows.count_B))
        return last_D, next_D
    finally:
        storage.release(seat)


def window_row(
    model: Model,
    storage: Storage,
    sizes: Sizes,
    tokens: Sequence[int],
    before: int,
    size: int,
) -> tuple[Tensor, ...]:
    """One row after a prompt, in a round of `size` rows: its hidden row, logits and state after.

    The other rows are other streams' first ones, in windows as long as `size` needs.
    """
    streams = min(size, storage.lanes)
    counts = [1] + [0] * (streams - 1)
    for place in range(size - 1 if streams > 1 else 0):
        counts[1 + place % (streams - 1)] += 1
    claimed = [before + counts[0], *counts[1:]]
    seats = [storage.claim(count) for count in claimed]
    try:
        own = seats[0]
        model.prompt(built([Run(tokens[:before], own.lane, 0)], storage, sizes, prompt=True))
        runs = [Run(tokens[before : before + counts[0]], own.lane, before)]
        for seat, count in zip(seats[1:], counts[1:], strict=True):
            runs.append(Run(tokens[seat.lane : seat.lane + count], seat.lane, 0))
        rows = built(runs, storage, sizes, prompt=False)
        hidden_RD = model.window(rows)
        logits_RV = model.logits(hidden_RD)
        model.settle(rows, torch.ones_like(rows.count_B))
        state = stream_state(storage, own, before + 1)
        return hidden_RD[:1].clone(), logits_RV[:1].clone(), *state.values()
    finally:
        for seat in seats:
            storage.release(seat)
