"""What the host does between two rounds of a torch engine, over a device that answers at once:
from a round's words to the next one's launch. Figures are printed when they are asked for, as in
`test_host_turn.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tensorfold.core.engine.packing import Powers, Shape
from tensorfold.core.engine.runner import Ready, Run, Wait
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.stream import Delivery, Job
from tensorfold.core.settings import read
from tensorfold.families.glm53.plugin import FAMILY
from tensorfold.tools import widths
from tensorfold.tools.decode import engines, gaps

ROUNDS = 1500
WARM = 100
# Microseconds by live streams, medians: what a device adds is less than the rest of the bound.
# Rounds that run ahead do not wait for records and the lane host's turn, others do.
MOST = {True: {1: 6.0, 8: 8.0}, False: {1: 40.0, 8: 80.0}}


class Instant:
    """A queued runner that works a shape's first round out, and answers the same ever after."""

    queued = True

    def __init__(self, ahead: bool) -> None:
        self.ahead = ahead
        self.buckets = Powers(tile=1, most_rows=8, most_window=1)
        self.answers: dict[Shape, np.ndarray] = {}
        self.landed: float | None = None
        self.gaps: list[float] = []

    def run(
        self, words: np.ndarray, step: Run, shape: Shape | None, idle: Callable[[], np.ndarray]
    ) -> Wait:
        answer = None if shape is None else self.answers.get(shape)
        if answer is None:
            with torch.inference_mode():
                answer = step(torch.from_numpy(words.copy())).numpy().copy()
            if shape is not None:
                self.answers[shape] = answer
        elif self.landed is not None:
            self.gaps.append(time.perf_counter() - self.landed)
        found = answer

        def wait() -> np.ndarray:
            self.landed = time.perf_counter()
            return found

        return wait

    def ready(
        self, words: np.ndarray, step: Run, shape: Shape, idle: Callable[[], np.ndarray]
    ) -> Ready | None:
        return (lambda: self.run(words, step, shape, idle)) if self.ahead else None


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("how", gaps.HOWS)
@pytest.mark.parametrize("live", [1, 8])
def test_from_landing_to_launch(
    benchmark: Any, capsys: pytest.CaptureFixture[str], live: int, how: str, ahead: bool
) -> None:
    flags: dict[str, Any] = {"lanes": live, "context": 4096, "chunk_rows": 256, "window_rows": 1}
    made = engines.opened(
        FAMILY,
        widths.tiny_glm53(2),
        "cpu-reference",
        read(flags, {}),
        lambda *told: None,
        checked=False,
    )
    runner = Instant(ahead)
    engine = TorchEngine(
        info=made.info,
        model=made.model,
        ops=made.ops,
        storage=made.storage,
        tile=1,
        runner=runner,
    )
    tokens: list[int] = []

    def deliver(batch: Sequence[Delivery]) -> None:
        tokens.extend(len(one.tokens) for one in batch)

    host = Host(engine, deliver)
    asked = gaps.HOWS[how]
    host.submit(
        [
            Job(
                stream=stream,
                prompt=tuple(range(1, 40 + stream)),
                most=WARM + ROUNDS + 100,
                sampling=asked.sampling,
                seed=stream,
                logprobs=asked.logprobs,
            )
            for stream in range(live)
        ]
    )
    with gaps.sharper(engine):
        for _ in range(WARM if benchmark.enabled else 3):
            host.turn()
        runner.gaps.clear()
        benchmark.pedantic(host.turn, rounds=ROUNDS if benchmark.enabled else 1)
    assert runner.gaps
    assert sum(tokens) >= 3 * live
    if benchmark.enabled:
        median = statistics.median(runner.gaps) * 1e6
        with capsys.disabled():
            runs = "ahead" if ahead else "when asked"
            print(f"\n    {live} live, {how}, {runs}: landing to launch {median:.1f} µs")
        assert median <= MOST[ahead][live]
