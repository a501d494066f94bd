"""Rounds of one row a stream, through an engine's own calls, and what they picked."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.engine.ordering import Order
from tensorfold.core.engine.packing import device_blocks, layout
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Sampling, Window
from tensorfold.tools.decode.clocks import wait_for

# Steps that are enqueued without waiting between them.
ENQUEUED = 20
# Rounds before the first that is timed.
WARM = 3
GREEDY = Sampling()


@dataclass(kw_only=True, slots=True)
class Live:
    """A stream between two rounds: its rows so far, and the random tokens that it is fed.

    They are fed whatever the engine draws, so that engines which draw others do the same work.
    """

    stream: int
    tokens: Sequence[int]
    rows: int


def begun(
    engine: TorchEngine,
    stream: int,
    rows: int,
    most: int,
    *,
    sampling: Sampling = GREEDY,
    logprobs: int | None = None,
) -> tuple[Live, float]:
    """A stream after a prompt of `rows` random tokens in chunks; and the prompt's seconds."""
    generator = torch.Generator().manual_seed(stream)
    tokens = torch.randint(0, engine.info.vocab_size, (rows + most,), generator=generator).tolist()
    prompt = tuple(tokens[:rows])
    engine.open(
        Opening(stream=stream, prompt=prompt, most=most, sampling=sampling, logprobs=logprobs)
    )
    wait_for(engine.storage.table.device)
    began = time.perf_counter()
    for start in range(0, rows, engine.info.chunk_rows):
        end = min(rows, start + engine.info.chunk_rows)
        (filled,) = engine.fill([Piece(stream=stream, start=start, end=end)]).land()
        assert filled.fault is None, filled
    seconds = time.perf_counter() - began
    assert filled.token is not None
    return Live(stream=stream, tokens=tokens, rows=rows), seconds


def windows_of(lives: Sequence[Live]) -> list[Window]:
    return [Window(stream=live.stream, tokens=(live.tokens[live.rows],)) for live in lives]


def one_round(engine: TorchEngine, lives: Sequence[Live]) -> None:
    for live, landed in zip(lives, engine.round(windows_of(lives)).land(), strict=True):
        assert landed.fault is None, landed
        live.rows += 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """Seconds of a round: of the device's work alone, and from one round's start to the next's."""

    device: float
    wall: float


def timed(engine: TorchEngine, lives: Sequence[Live], reps: int) -> Timed:
    for _ in range(WARM):
        one_round(engine, lives)
    walls = []
    for _ in range(reps):
        began = time.perf_counter()
        one_round(engine, lives)
        walls.append(time.perf_counter() - began)
    return Timed(device=device_seconds(engine, lives), wall=statistics.median(walls))


@torch.inference_mode()
def device_seconds(engine: TorchEngine, lives: Sequence[Live]) -> float:
    """The same round enqueued again and again, waited for at the end: the device never rests."""
    order = order_of(engine, lives)
    if not engine.runner.queued:
        began = time.perf_counter()
        engine.runner.run(order.words, *step_of(engine, order))()
        return time.perf_counter() - began
    found = []
    for _ in range(3):
        wait_for(engine.storage.table.device)
        began = time.perf_counter()
        for _ in range(ENQUEUED):
            wait = engine.runner.run(order.words, *step_of(engine, order))
        wait()
        found.append((time.perf_counter() - began) / ENQUEUED)
    return min(found)


def order_of(engine: TorchEngine, lives: Sequence[Live]) -> Order:
    windows = windows_of(lives)
    return engine.ordering.round(windows, engine.ordering.coming(engine.streams, windows))


def step_of(engine: TorchEngine, order: Order) -> tuple[Any, ...]:
    return (
        lambda words: engine.step.round(words, order.shape),
        order.shape,
        lambda: engine.ordering.idle(order.shape),
    )


def picked(engine: TorchEngine, lives: Sequence[Live]) -> list[int]:
    """How many different experts a round of these streams reads, by layer that has experts.

    Told by the model's ops, run one by one.
    """
    model: Any = engine.model
    found: list[Tensor] = []

    def spying(call: Any) -> Any:
        def run(x_RD: Tensor, ids_RK: Tensor, *rest: Any) -> Any:
            found.append(ids_RK)
            return call(x_RD, ids_RK, *rest)

        return run

    names = ("experts", "experts_weighted")
    ops = replace(model.ops, **{name: spying(getattr(model.ops, name)) for name in names})
    plain = type(model)(model.config, model.weights, ops, engine.storage.buffers)
    order = order_of(engine, lives)
    words = torch.from_numpy(order.words.copy()).to(engine.storage.table.device)
    blocks = device_blocks(words, layout(order.shape, engine.step.sizes))
    rows = engine.step.rows_of(blocks, order.shape)._replace(rows_BW=blocks["window"])
    with torch.inference_mode():
        plain.window(rows)
    return [int(ids[ids >= 0].unique().numel()) for ids in found]
