"""Steps on a CUDA stream: enqueued at launch, replayed as graphs where their shape allows.

What is captured is a whole step of one `Shape`: its inputs are copied into the graph's own words
before a replay, its results from the graph's own words after. Graphs share one memory pool, since
one step runs at a time and nothing of a step outlives the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensorfold.core.engine.packing import Buckets, Shape
from tensorfold.core.engine.runner import Run, Wait

# Runs before a capture: kernels are compiled and loaded, and libraries take their workspaces.
TRIES = 2


class Captured(NamedTuple):
    """A graph, the words it reads and the words it writes."""

    graph: torch.cuda.CUDAGraph
    words: Tensor
    out: Tensor


class Queued:
    """A `Runner` on a CUDA device; without `captured` every step is enqueued op by op."""

    queued = True

    def __init__(self, device: torch.device, buckets: Buckets, *, captured: bool) -> None:
        self.device, self.buckets, self.captured = device, buckets, captured
        self.given, self.taken = pinned(0), pinned(0)
        self.done = torch.cuda.Event()
        self.graphs: dict[Shape, Captured] = {}
        self.pool = torch.cuda.graph_pool_handle() if captured else None

    def staging(self, words: int) -> np.ndarray:
        if len(self.given) < words:
            self.given = pinned(2 * words)
        return self.given[:words].numpy()

    def run(
        self, words: np.ndarray, step: Run, shape: Shape | None, idle: Callable[[], np.ndarray]
    ) -> Wait:
        # A tensor over the staging array itself: it is pinned, so the copy need not wait.
        given = self.given[: len(words)]
        assert given.data_ptr() == words.ctypes.data, "words are not those of staging"
        if shape is None or not self.captured:
            out = step(given.to(self.device, non_blocking=True))
        else:
            if shape not in self.graphs:
                self.graphs[shape] = self.capture(step, idle())
            held = self.graphs[shape]
            held.words.copy_(given, non_blocking=True)
            held.graph.replay()
            out = held.out
        if len(self.taken) < len(out):
            self.taken = pinned(2 * len(out))
        taken = self.taken[: len(out)]
        taken.copy_(out, non_blocking=True)
        self.done.record()

        def wait() -> np.ndarray:
            self.done.synchronize()
            return taken.numpy()

        return wait

    def capture(self, step: Run, idle: np.ndarray) -> Captured:
        """A graph of `step`, tried on words that touch no stream."""
        words = torch.from_numpy(idle).to(self.device)
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            for _ in range(TRIES):
                step(words)
        torch.cuda.current_stream(self.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            out = step(words)
        return Captured(graph, words, out)


def pinned(words: int) -> Tensor:
    return torch.empty(words, dtype=torch.int64, pin_memory=words > 0)
