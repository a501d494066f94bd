"""An engine of elsewhere whose flights the host could not land is refused at the start, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tensorfold.backends.fake.backend import FakeBackend
from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import FakeOptions, Trouble
from tensorfold.core.engine_api import Window
from tensorfold.core.errors import StartError
from tensorfold.core.lane_host.door import check_flights
from tensorfold.core.settings import read
from tensorfold.plugins.choose import choose_backend
from tensorfold.plugins.manager import discover
from tensorfold.tools.models import find_model
from tensorfold.tools.serve import load
from tests.null.hosting import Rig, job


class OldFlight:
    def __init__(self, land: Callable[[], list[Any]]) -> None:
        self.work = land

    def land(self) -> list[Any]:
        return self.work()


class OldEngine(FakeEngine):
    """Its calls named in `old` give flights of another time."""

    old: Sequence[str] = ("fill", "round")

    def fill(self, pieces: Sequence[Any]) -> Any:
        flight = super().fill(pieces)
        return OldFlight(flight.land) if "fill" in self.old else flight

    def round(self, windows: Sequence[Window]) -> Any:
        flight = super().round(windows)
        return OldFlight(flight.land) if "round" in self.old else flight


@pytest.mark.parametrize("old", [("fill",), ("round",), ("fill", "round")])
def test_an_engine_whose_land_takes_no_waits_is_refused_by_name(old: tuple[str, ...]) -> None:
    engine = OldEngine(FakeOptions())
    engine.old = old
    with pytest.raises(StartError, match=r"engine OldEngine .*OldFlight\.land\(\).* take `waits`"):
        check_flights(engine)


def test_an_engine_that_conforms_is_left_as_it_was_and_serves() -> None:
    rig = Rig()
    check_flights(rig.engine)
    assert (rig.engine.streams, rig.engine.kept, rig.engine.slips) == ({}, {}, [])
    rig.submit(job(0, most=9))
    rig.run()
    rig.check()


@pytest.mark.parametrize(
    "options", [{"room_tokens": 2}, {"troubles": (Trouble(kind="fill.land", fault="x"),)}]
)
def test_an_engine_that_refuses_or_hurts_nobodys_stream_is_none_the_worse(options: Any) -> None:
    engine = FakeEngine(FakeOptions(**options))
    check_flights(engine)
    assert engine.streams == {}


def test_a_whole_engine_is_looked_at_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBackend, "engine", lambda self, order: OldEngine(FakeOptions()))
    installed = discover()
    backend = choose_backend(installed, "fake")
    model = find_model(installed, backend, "fake")
    with pytest.raises(StartError, match="OldEngine"):
        load(read({"backend": "fake"}, {}), backend, model, None, None)  # type: ignore[arg-type]
