"""`tools/decode/gaps.py` and the rounds that benches time, without a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensorfold.core.engine.graphs import Captured
from tensorfold.core.engine.packing import Shape
from tensorfold.core.engine.sampling import Reach
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling, Window
from tensorfold.core.settings import read
from tensorfold.families.glm53.plugin import FAMILY
from tensorfold.tools import widths
from tensorfold.tools.decode import engines, gaps, rounds


class Clock:
    """A device that is as far as what was enqueued on it, in milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def replay(self) -> None:
        self.now += 3.0


class At:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.time = -1.0

    def record(self, stream: Any) -> None:
        self.time = self.clock.now

    def elapsed_time(self, other: Any) -> float:
        return float(other.time - self.time)


def shape_of(rows: int, window: int) -> Shape:
    return Shape(rows=rows, drawn=rows, streams=1, window=window, width=64, reach=Reach(0, 0))


def held(clock: Clock) -> Captured:
    graph: Any = clock
    return Captured(*[graph] * len(Captured._fields))


def test_a_gap_is_from_the_end_of_a_replay_to_the_start_of_the_next() -> None:
    clock = Clock()
    one, other, prompt = shape_of(2, 1), shape_of(4, 1), shape_of(64, 0)
    graphs = {shape: held(clock) for shape in (one, other, prompt)}
    plain = dict(graphs)
    unused = [gaps.Replay(At(clock), At(clock)) for _ in range(4)]
    with gaps.marking(graphs, None, unused) as replays:
        # A prompt is no round.
        graphs[prompt].graph.replay()
        for shape, between in ((one, 0.1), (other, 0.2), (one, 0.9), (one, 5.0)):
            graphs[shape].graph.replay()
            clock.now += between
        # There are no more events: it is replayed all the same.
        graphs[one].graph.replay()
    assert clock.now == pytest.approx(6 * 3.0 + 6.2)
    assert graphs == plain
    found = gaps.summed(replays, streams=2, how="greedy", over=gaps.BARE)
    assert found.counted == 3
    assert found.median == pytest.approx(0.2e-3)
    assert found.longest == pytest.approx(0.9e-3)
    assert found.device == pytest.approx(3e-3)


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    flags: dict[str, Any] = {"lanes": 3, "context": 512, "chunk_rows": 256, "window_rows": 1}
    raw = widths.tiny_glm53(4)
    return engines.opened(
        FAMILY, raw, "cpu-reference", read(flags, {}), lambda *told: None, checked=False
    )


@pytest.mark.parametrize("how", gaps.HOWS)
@pytest.mark.parametrize("loop", [gaps.bare, gaps.hosted])
def test_a_loop_runs_so_many_rounds_of_all_its_streams(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, loop: gaps.Loop, how: str
) -> None:
    seen: list[int] = []
    whole = engine.round

    def watched(windows: Any) -> Any:
        seen.append(len(windows))
        return whole(windows)

    monkeypatch.setattr(engine, "round", watched)
    loop(engine, 3, 40, 5, gaps.HOWS[how])
    assert seen == [3] * 5
    assert not engine.streams


def test_what_replays_no_graphs_has_no_gaps(engine: TorchEngine) -> None:
    assert gaps.measured(engine, 2, 40, 3) == []


def test_weights_are_what_they_were_behind_sharper_ones(engine: TorchEngine) -> None:
    model: Any = engine.model
    before = model.weights.head.clone()
    with gaps.sharper(engine):
        assert torch.equal(model.weights.head, before * gaps.SHARPER)
    assert torch.equal(model.weights.head, before)


def test_engines_that_draw_other_tokens_are_fed_the_same(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[list[Window]] = []
    drawn: list[tuple[int, ...]] = []
    whole = engine.round

    def watched(windows: Any) -> Any:
        fed[-1].extend(windows)
        flight = whole(windows)
        land = flight.land

        def landing() -> Any:
            results = land()
            drawn[-1] += tuple(token for one in results for token in one.tokens)
            return results

        monkeypatch.setattr(flight, "land", landing)
        return flight

    monkeypatch.setattr(engine, "round", watched)
    for sampling in (Sampling(), Sampling(temperature=3.0)):
        fed.append([])
        drawn.append(())
        lives = [rounds.begun(engine, number, 30, 9, sampling=sampling)[0] for number in (0, 1)]
        for _ in range(4):
            rounds.one_round(engine, lives)
        for live in lives:
            engine.close(live.stream)
    assert fed[0] == fed[1]
    assert drawn[0] != drawn[1]
    assert len({window.tokens for window in fed[0]}) > 4
