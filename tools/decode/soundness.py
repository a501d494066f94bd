"""The promises that a bench asks of an engine before it times it, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, TokenLogprob, Window

TOKENS = 6
ALTERNATIVES = 2
# Replies of one stream: its tokens, and their log-probabilities.
Reply = tuple[tuple[int, ...], tuple[TokenLogprob, ...]]


def prompt_of(engine: TorchEngine, number: int, rows: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 + number)
    return tuple(torch.randint(0, engine.info.vocab_size, (rows,), generator=generator).tolist())


def replies(
    engine: TorchEngine, prompts: Mapping[int, tuple[int, ...]], cut: Callable[[int], Sequence[int]]
) -> dict[int, Reply]:
    """Greedy replies of streams that decode together; `cut` gives the ends of a prompt's pieces."""
    pending: dict[int, list[int]] = {}
    told: dict[int, list[TokenLogprob]] = {}
    for stream, prompt in prompts.items():
        engine.open(Opening(stream=stream, prompt=prompt, most=TOKENS + 1, logprobs=ALTERNATIVES))
        start = 0
        for end in cut(len(prompt)):
            (filled,) = engine.fill([Piece(stream=stream, start=start, end=end)]).land()
            assert filled.fault is None, filled
            start = end
        assert filled.token is not None
        assert filled.logprob is not None
        pending[stream], told[stream] = [filled.token], [filled.logprob]
    for _ in range(TOKENS):
        windows = [Window(stream=stream, tokens=(pending[stream][-1],)) for stream in prompts]
        for landed in engine.round(windows).land():
            assert landed.fault is None, landed
            pending[landed.stream] += landed.tokens
            told[landed.stream] += landed.logprobs
    for stream in prompts:
        engine.close(stream)
    return {stream: (tuple(pending[stream]), tuple(told[stream])) for stream in prompts}


def cut_at(step: int, rows: int) -> list[int]:
    """The ends of pieces of `step` rows, the last one the prompt's."""
    return [*range(step, rows, step), rows]


def holds(engine: TorchEngine) -> dict[str, bool]:
    """Promises by name."""
    info = engine.info
    grid = max(info.grid, 16)
    lengths = [min(rows, info.context - TOKENS - 2) for rows in (5, 3 * grid + 7, grid, 2 * grid)]
    streams = min(info.lanes, 8)
    prompts = {n: prompt_of(engine, n, lengths[n % len(lengths)]) for n in range(streams)}
    whole = partial(cut_at, info.chunk_rows)
    solo: dict[int, Reply] = {}
    for stream, prompt in prompts.items():
        solo |= replies(engine, {stream: prompt}, whole)
    together = replies(engine, prompts, whole)

    pieces = replies(engine, {1 % streams: prompts[1 % streams]}, partial(cut_at, grid))
    twice = replies(engine, {0: prompts[0]}, whole)
    return {
        "concurrent = solo": together == solo,
        "split = whole": pieces[1 % streams] == solo[1 % streams],
        "twice = once": twice[0] == solo[0],
    }
