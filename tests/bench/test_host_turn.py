"""What a turn of the host costs beside its engine. Figures are printed when they are asked for:

    python -m pytest tests/bench --benchmark-only

In every other run each of these is one plain test, and nothing is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorfold.core.copies import Copies
from tensorfold.core.lane_host.host import Host
from tensorfold.core.server.trace_file import LastTurns, TraceFile
from tests.bench.timed import MICROSECONDS, TimedEngine, decoding

TURNS = 400
# Microseconds, medians.
MOST_TURN = 100.0
MOST_FURTHER = 8.0
MOST_GAP = 50.0
MOST_TRACE = 15.0
# What two medians of the same thing may differ by.
NOISE = 1.15

Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def aloud(words: str) -> None:
        with capsys.disabled():
            print(f"\n    {words}")

    return aloud


def turns(host: Host, engine: TimedEngine, count: int) -> list[float]:
    """Microseconds of each turn, the engine's own taken off."""
    spent = []
    for _ in range(count):
        began = engine.clock()
        host.turn()
        spent.append((engine.clock() - began) * MICROSECONDS)
    return spent


def median_turn(live: int, count: int, **options: Any) -> float:
    host, engine = decoding(live, **options)
    turns(host, engine, count // 10 + 1)
    return statistics.median(turns(host, engine, count))


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("live", [1, 8, 64, 256])
def test_a_turn(benchmark: Any, say: Say, live: int, drafts: int) -> None:
    host, engine = decoding(live, drafts=drafts)
    benchmark._timer = engine.clock
    benchmark.pedantic(host.turn, rounds=TURNS if benchmark.enabled else 1, warmup_rounds=20)
    if benchmark.enabled:
        median = benchmark.stats.stats.median * MICROSECONDS
        gap = statistics.median(engine.gaps) * MICROSECONDS
        say(f"{live} live, {drafts} drafts: turn {median:.1f} µs, commit to launch {gap:.1f} µs")
        assert live != 8 or median <= MOST_TURN
        assert live != 8 or gap <= MOST_GAP


@pytest.mark.parametrize("live", [1, 8])
def test_a_turn_that_weighs_its_rows_and_looks_for_copies(
    benchmark: Any, say: Say, live: int
) -> None:
    host, engine = decoding(live, paid=True, drafters=[Copies()])
    benchmark._timer = engine.clock
    benchmark.pedantic(host.turn, rounds=TURNS if benchmark.enabled else 1, warmup_rounds=20)
    if benchmark.enabled:
        median = benchmark.stats.stats.median * MICROSECONDS
        gap = statistics.median(engine.gaps) * MICROSECONDS
        say(f"{live} live, weighed, copies: turn {median:.1f} µs, commit to launch {gap:.1f} µs")
        assert live != 8 or median <= MOST_TURN
        assert live != 8 or gap <= MOST_GAP


@pytest.mark.parametrize("drafts", [0, 3])
def test_a_further_stream(benchmark: Any, say: Say, drafts: int) -> None:
    count = TURNS if benchmark.enabled else 1
    benchmark.pedantic(lambda: None)
    eight, many = (median_turn(live, count, drafts=drafts) for live in (8, 256))
    if benchmark.enabled:
        further = (many - eight) / (256 - 8)
        say(f"{drafts} drafts: {further:.2f} µs for each further stream up to 256")
        assert further <= MOST_FURTHER


def test_ten_thousand_that_wait(benchmark: Any, say: Say) -> None:
    count = TURNS if benchmark.enabled else 1
    benchmark.pedantic(lambda: None)
    few, many = (median_turn(8, count, waiting=waiting) for waiting in (10, 10_000))
    if benchmark.enabled:
        say(f"8 live: {few:.1f} µs with 10 that wait, {many:.1f} µs with 10,000")
        assert many <= few * NOISE


@pytest.mark.parametrize("kind", ["file", "last turns"])
def test_a_trace(benchmark: Any, say: Say, tmp_path: Path, kind: str) -> None:
    """Everything that it costs, the writing on its own thread included: no core is free of it."""
    benchmark.pedantic(lambda: None)
    costs = []
    for number in range(9 if benchmark.enabled else 1):
        count = 1000 if benchmark.enabled else 1
        without = processor_seconds(decoding(8)[0], count)
        file = TraceFile(tmp_path / f"{number}.jsonl") if kind == "file" else None
        host, _ = decoding(8, trace=file or LastTurns())
        began = time.process_time()
        processor_seconds(host, count)
        if file is not None:
            file.close()
        costs.append((time.process_time() - began - without) / count * MICROSECONDS)
    if benchmark.enabled:
        say(f"8 live: a trace, {kind}: {statistics.median(costs):.1f} µs a turn")
        assert statistics.median(costs) <= MOST_TRACE


def processor_seconds(host: Host, count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        host.turn()
    return time.process_time() - began
