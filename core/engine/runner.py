"""Where steps run: the seam between the engine and a device's queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tensorfold.core.engine.packing import Buckets, Shape

# A step of one shape: words to words.
Run = Callable[[Tensor], Tensor]
# Waits for a step and gives its words on the host, valid until the next step is run; of one that
# was made ready, until the next one of its shape is.
Wait = Callable[[], np.ndarray]
# Runs a step on what its words hold by now.
Ready = Callable[[], Wait]


class Rounds(NamedTuple):
    """What a runner is made for: the most rows of a round and of a window, and whether steps may be
    captured (the order asks for compiled forwards)."""

    most_rows: int
    most_window: int
    captured: bool


class Runner(Protocol):
    """Runs steps, one at a time and in order.

    `queued` tells whether `run` returns before the work is done; then the engine runs a step at
    launch and waits at landing. The next is run when the last was waited for, but for a step that
    was made `ready`: behind it others may be run first. `buckets` are the sizes that it wants
    rounds rounded to.
    """

    queued: bool
    buckets: Buckets

    def run(
        self, words: np.ndarray, step: Run, shape: Shape | None, idle: Callable[[], np.ndarray]
    ) -> Wait:
        """Run `step` on words, in inference mode; they may be others when this returns.

        Steps of an equal `shape` are the same operations on equal sizes, and may be captured and
        replayed after; with none the step is run as it is. `idle` gives words of that
        shape that touch no stream, on which a step may be tried before it is captured.
        """
        ...

    def ready(
        self, words: np.ndarray, step: Run, shape: Shape, idle: Callable[[], np.ndarray]
    ) -> Ready | None:
        """As `run`, with all done but what has to be done once the words are what they should be.

        None where steps of this shape share what they write with others.
        """
        ...


class AtOnce:
    """Runs a step on the CPU, where it is called."""

    queued = False

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets

    def run(
        self, words: np.ndarray, step: Run, shape: Shape | None, idle: Callable[[], np.ndarray]
    ) -> Wait:
        with torch.inference_mode():
            out = step(torch.from_numpy(words))
        return lambda: out.numpy()

    def ready(
        self, words: np.ndarray, step: Run, shape: Shape, idle: Callable[[], np.ndarray]
    ) -> None:
        return None
