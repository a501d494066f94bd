"""What a bench asks of every rank of an engine, beside the calls that rank 0 makes for all."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.engine.graphs import Queued
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.share import Share
from tensorfold.tools.decode import bursting
from tensorfold.tools.decode.floors import of_one_expert

# Sums in one graph.
EXCHANGED = 30


class Spied:
    """The experts that the rows of the last round picked, by layer: the model's own tensors, looked
    at when a round has landed. A compiled model shows none."""

    def __init__(self, engine: TorchEngine, *, compiled: bool) -> None:
        self.ids: deque[Tensor] = deque(maxlen=64)
        self.on_gpu = engine.storage.table.device.type == "cuda"
        model: Any = engine.model
        self.model = model
        self.shown = not compiled
        if not self.shown:
            return
        names = ("experts", "experts_weighted")
        ops = model.ops
        model.ops = replace(ops, **{name: self.seeing(getattr(ops, name)) for name in names})
        # What is captured from here on is seen.
        if isinstance(engine.runner, Queued):
            engine.runner.forget()

    def seeing(self, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(x_RD: Tensor, ids_RK: Tensor, *rest: Any) -> Tensor:
            # A captured round leaves its picks in the tensors that it was captured with.
            if not self.on_gpu or torch.cuda.is_current_stream_capturing():
                self.ids.append(ids_RK)
            return call(x_RD, ids_RK, *rest)

        return run

    def picked(self, ranks: int, count: int) -> list[list[int]]:
        """By rank, how many different experts of its own each layer with experts reads in a round
        of so many rows: the least forwards that have them. What a prompt was captured with since
        holds anything by now."""
        layers = [layer for layer in self.model.weights.layers if of_one_expert(layer)]
        held = [layer.mlp.gate_up_EDI.shape[0] for layer in layers]
        rows = min((len(ids) for ids in self.ids if len(ids) >= count), default=0)
        last = [ids for ids in self.ids if len(ids) == rows][-len(layers) :] if layers else []
        found = []
        for rank in range(ranks):
            own = []
            for ids, count in zip(last, held, strict=True):
                here = (ids >= rank * count) & (ids < (rank + 1) * count)
                own.append(int(ids[here].unique().numel()))
            found.append(own)
        return found


def exchange_seconds(engine: TorchEngine, rows: int) -> dict[int, float]:
    """Seconds of a sum over ranks of one row and of `rows` rows, each one of many in a graph."""
    group = engine.group
    model: Any = engine.model
    if group is None or not torch.cuda.is_available():
        return {}
    device, width = engine.storage.table.device, model.weights.embed.shape[1]
    found = {}
    for count in sorted({2, max(2, rows)}):
        part = torch.ones(count, width, device=device)
        for _ in range(3):
            group.total(part, torch.bfloat16)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(EXCHANGED):
                group.total(part, torch.bfloat16)
        seconds = []
        for _ in range(10):
            group.exchange(b"")
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            graph.replay()
            ended.record()
            torch.cuda.synchronize(device)
            seconds.append(began.elapsed_time(ended) / 1e3 / EXCHANGED)
        found[count] = statistics.median(seconds)
    return found


@torch.inference_mode()
def likely_words(engine: TorchEngine, share: Share) -> None:
    """Tokens that the bundled model's small tokenizer knows are the only likely ones."""
    model: Any = engine.model
    first, _ = share.bounds(engine.info.vocab_size, "the vocabulary")
    model.weights.head[max(0, bursting.MOST - first) :].zero_()
