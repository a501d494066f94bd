"""The host on its own thread: it wakes, it rests, it stops, and any thread may ask it things."""

import threading
import time
from collections.abc import Iterator

import pytest

from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import Call, FakeOptions
from tensorfold.core.errors import EngineLost, RequestError
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.stream import Job
from tests.null.hosting import Reader, eventually, job, solo

Made = tuple[Host, FakeEngine, Reader]


class Gate:
    """Holds the engine thread at a call until it is let through."""

    def __init__(self) -> None:
        self.kind = ""
        self.reached = threading.Event()
        self.through = threading.Event()
        self.error: BaseException | None = None

    def __call__(self, call: Call) -> None:
        if call.kind == self.kind:
            self.reached.set()
            assert self.through.wait(5)
            if self.error is not None:
                raise self.error

    def hold(self, kind: str) -> None:
        self.kind = kind

    def let_go(self, error: BaseException | None = None) -> None:
        self.kind, self.error = ("" if error is None else self.kind), error
        self.through.set()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def made(gate: Gate) -> Iterator[Made]:
    engine = FakeEngine(FakeOptions(hook=gate, drafts=3, lanes=4))
    reader = Reader()
    host = Host(engine, reader)
    host.start()
    yield host, engine, reader
    gate.let_go()
    host.close(0.0)
    assert engine.slips == []


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "engine"]


def test_it_serves_what_comes_and_rests_in_between(made: Made) -> None:
    host, engine, reader = made
    for start in (1, 10, 20):
        jobs = [job(stream) for stream in range(start, start + 6)]
        host.submit(jobs)
        eventually(lambda jobs=jobs: all(j.stream in reader.ends for j in jobs))
        for each in jobs:
            assert reader.tokens[each.stream] == solo(each)
    eventually(lambda: engine.streams == {})
    turns = host.stats().turns
    time.sleep(0.02)
    assert host.stats().turns == turns
    assert host.stats().alive


def test_submissions_from_many_threads_end_once_each_and_figures_always_add_up(made: Made) -> None:
    host, _, reader = made
    wrong: list[object] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            stats = host.stats()
            placed = stats.waiting + stats.filling + stats.live
            if stats.started != stats.finished + stats.failed + stats.aborted + placed:
                wrong.append(stats)

    def client(first: int) -> None:
        for stream in range(first, first + 20):
            host.submit([job(stream, rows=1 + stream % 80)])
            if stream % 4 == 0:
                host.cancel(stream)

    clients = [threading.Thread(target=client, args=(100 * n,)) for n in range(1, 5)]
    watcher = threading.Thread(target=watch)
    for thread in [watcher, *clients]:
        thread.start()
    for thread in clients:
        thread.join()
    eventually(lambda: len(reader.ends) == 80)
    done.set()
    watcher.join()
    assert wrong == []
    for stream, end in reader.ends.items():
        if end.reason == "length":
            assert reader.tokens[stream] == solo(job(stream, rows=1 + stream % 80))


@pytest.mark.parametrize("kind", ["open", "fill", "fill.land", "round", "round.land"])
def test_a_cancel_during_a_call_waits_for_it_and_then_ends_the_stream(
    made: Made, gate: Gate, kind: str
) -> None:
    host, engine, reader = made
    gate.hold(kind)
    host.submit([job(1, most=1000), job(2)])
    assert gate.reached.wait(5)
    host.cancel(1)
    gate.let_go()
    eventually(lambda: set(reader.ends) == {1, 2})
    assert [reader.ends[stream].reason for stream in (1, 2)] == ["cancelled", "length"]
    eventually(lambda: engine.streams == {})


@pytest.mark.parametrize("kind", ["open", "fill.land", "round.land"])
def test_an_engine_lost_on_its_thread_ends_everyone_and_the_thread(
    made: Made, gate: Gate, kind: str
) -> None:
    host, _, reader = made
    gate.hold(kind)
    host.submit([job(stream, most=100) for stream in range(1, 7)])
    assert gate.reached.wait(5)
    gate.let_go(EngineLost("the device is gone"))
    eventually(lambda: len(reader.ends) == 6)
    assert {end.message for end in reader.ends.values()} == {"the device is gone"}
    eventually(lambda: not threads())
    stats = host.stats()
    assert (stats.lost, stats.alive) == ("the device is gone", False)
    with pytest.raises(RequestError) as caught:
        host.submit([job(9)])
    assert caught.value.status == 503


def test_closing_joins_the_thread_and_leaves_nobody_without_an_end(made: Made, gate: Gate) -> None:
    host, engine, reader = made
    gate.hold("round")
    host.submit([job(1, most=6), *(job(stream, most=3000) for stream in range(2, 8))])
    assert gate.reached.wait(5)
    gate.let_go()
    host.close(0.05)
    assert threads() == []
    assert set(reader.ends) == set(range(1, 8))
    reasons = [reader.ends[stream].reason for stream in range(1, 8)]
    assert reasons[0] in ("length", "closing")
    assert reasons[4:] == ["closing"] * 3
    assert engine.streams == {}
    host.close(0.0)


def test_a_second_signal_cuts_the_drain_short(made: Made, gate: Gate) -> None:
    host, _, reader = made
    gate.hold("round")
    host.submit([job(1, most=4000)])
    assert gate.reached.wait(5)
    closer = threading.Thread(target=host.close, args=(600.0,))
    closer.start()
    eventually(lambda: host.stats().closing)
    assert closer.is_alive()
    host.close_now()
    gate.let_go()
    closer.join(5)
    assert not closer.is_alive()
    assert reader.ends[1].reason == "closing"


def test_an_idle_host_closes_at_once(made: Made) -> None:
    host, _, _ = made
    host.close(600.0)
    assert threads() == []
    assert not host.stats().alive


def test_a_closing_that_meets_a_submission_ends_it_or_refuses_it() -> None:
    for _ in range(30):
        engine = FakeEngine(FakeOptions())
        reader = Reader()
        host = Host(engine, reader)
        host.start()
        taken: list[Job] = []

        def client(host: Host = host, taken: list[Job] = taken) -> None:
            for stream in range(1, 50):
                try:
                    host.submit([job(stream, most=50)])
                except RequestError:
                    return
                taken.append(job(stream, most=50))

        thread = threading.Thread(target=client)
        thread.start()
        host.close(0.0)
        thread.join()
        assert set(reader.ends) == {each.stream for each in taken}
        stats = host.stats()
        assert (stats.waiting, stats.filling, stats.live) == (0, 0, 0)
        assert engine.streams == {}


def test_closing_from_the_engines_own_thread_does_not_wait_for_itself() -> None:
    engine = FakeEngine(FakeOptions())
    ended = threading.Event()

    def deliver(batch: object) -> None:
        host.close(0.0)
        ended.set()

    host = Host(engine, deliver)
    host.start()
    host.submit([job(1)])
    assert ended.wait(5)
    eventually(lambda: not threads())
    assert host.stats().lost is None


def test_an_exception_that_no_one_expects_leaves_no_warning_and_no_stream(
    made: Made, gate: Gate
) -> None:
    host, _, reader = made
    gate.hold("round")
    host.submit([job(1), job(2)])
    assert gate.reached.wait(5)
    gate.let_go(SystemExit(3))
    eventually(lambda: set(reader.ends) == {1, 2})
    eventually(lambda: not threads())
    assert "SystemExit" in (host.stats().lost or "")


def test_memory_may_be_asked_from_any_thread(made: Made, gate: Gate) -> None:
    host, _, _ = made
    gate.hold("round")
    host.submit([job(1, rows=40, most=6)])
    assert gate.reached.wait(5)
    assert host.memory().used == 46
    gate.let_go()
