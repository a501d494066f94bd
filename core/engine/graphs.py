"""Steps on a CUDA stream: enqueued at launch, replayed as graphs where their shape allows.

What is captured is a whole step of one `Shape`, its words' way to the device and back with it: a
replay is one call. Graphs share one memory pool, since one step runs at a time and nothing of a
step outlives the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tensorfold.core.engine.packing import Buckets, Shape
from tensorfold.core.engine.runner import Ready, Run, Wait

# Runs before a capture: kernels are compiled and loaded, and libraries take their workspaces. A
# prompt's shape has been run once when it comes again.
TRIES = 2


class Captured(NamedTuple):
    """A graph, the pinned words that it reads, and those that it writes as its wait gives them."""

    graph: torch.cuda.CUDAGraph
    given: np.ndarray
    wait: Wait
    held: tuple[Tensor, ...]


class Queued:
    """A `Runner` on a CUDA device; without `captured` every step is enqueued op by op.

    A round's shape is captured when it first comes, a prompt's when it comes again.
    """

    queued = True

    def __init__(self, device: torch.device, buckets: Buckets, *, captured: bool) -> None:
        self.device, self.buckets, self.captured = device, buckets, captured
        self.given, self.taken = pinned(0), pinned(0)
        self.done = torch.cuda.Event()
        # Every thread's steps are on the device's one stream: nothing here chooses another.
        self.stream = torch.cuda.current_stream(device)
        self.graphs: dict[Shape, Captured] = {}
        self.met: set[Shape] = set()
        self.pool = torch.cuda.graph_pool_handle() if captured else None

    def forget(self) -> None:
        """Drop every graph: steps are captured anew, as they are by then."""
        self.graphs.clear()
        if self.captured:
            # The last graph of a pool takes it along.
            self.pool = torch.cuda.graph_pool_handle()

    def run(
        self, words: np.ndarray, step: Run, shape: Shape | None, idle: Callable[[], np.ndarray]
    ) -> Wait:
        ready = None if shape is None else self.ready(words, step, shape, idle)
        return self.enqueue(words, step) if ready is None else ready()

    def ready(
        self, words: np.ndarray, step: Run, shape: Shape, idle: Callable[[], np.ndarray]
    ) -> Ready | None:
        """A graph's words are its own; steps that are not captured share theirs."""
        if not self.captured:
            return None
        held = self.graphs.get(shape)
        if held is None:
            if not shape.window and shape not in self.met:
                # Many sizes of prompts come once.
                self.met.add(shape)
                return None
            tries = TRIES if shape.window else TRIES - 1
            held = self.graphs[shape] = self.capture(step, idle(), tries)
        (graph, given, wait, _), done, stream = held, self.done, self.stream

        def replay() -> Wait:
            given[:] = words
            graph.replay()
            done.record(stream)
            return wait

        return replay

    @torch.inference_mode()
    def enqueue(self, words: np.ndarray, step: Run) -> Wait:
        if len(self.given) < len(words):
            self.given = pinned(2 * len(words))
        given = self.given[: len(words)]
        given.numpy()[:] = words
        out = step(given.to(self.device, non_blocking=True))
        if len(self.taken) < len(out):
            self.taken = pinned(2 * len(out))
        taken = self.taken[: len(out)]
        taken.copy_(out, non_blocking=True)
        self.done.record(self.stream)
        return self.waiting(taken)

    def waiting(self, taken: Tensor) -> Wait:
        found, done = taken.numpy(), self.done

        def wait() -> np.ndarray:
            done.synchronize()
            return found

        return wait

    @torch.inference_mode()
    def capture(self, step: Run, idle: np.ndarray, tries: int) -> Captured:
        """A graph of `step`, tried on words that touch no stream."""
        words = torch.from_numpy(idle).to(self.device)
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            for _ in range(tries):
                out = step(words)
        torch.cuda.current_stream(self.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the device meanwhile.
        given, taken = pinned(len(idle)), pinned(len(out))
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            words.copy_(given, non_blocking=True)
            out = step(words)
            taken.copy_(out, non_blocking=True)
        return Captured(graph, given.numpy(), self.waiting(taken), (words, given, taken))


def pinned(words: int) -> Tensor:
    return torch.empty(words, dtype=torch.int64, pin_memory=words > 0)
