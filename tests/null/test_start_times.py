"""The parts of a start: what runs between two steps counts as the first one's."""

from __future__ import annotations

import pytest

from tensorfold.tools import start_times
from tensorfold.tools.start_times import StartTimes


def test_parts_are_timed_by_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(start_times.time, "monotonic", lambda: now[0])
    told: list[tuple[str, int, int]] = []
    times = StartTimes(lambda *step: told.append(step))
    now[0] = 1.0
    times("reading", 0, 2)
    now[0] = 4.0
    times("reading", 2, 2)
    times("checking", 0, 0)
    now[0] = 4.5
    times("reading", 0, 1)
    now[0] = 5.5
    times.close()
    assert times.seconds == {"opening": 1.0, "reading": 4.0, "checking": 0.5}
    assert times.words() == "started in 5.5 s: opening 1.0, reading 4.0, checking 0.5"
    assert told == [("reading", 0, 2), ("reading", 2, 2), ("checking", 0, 0), ("reading", 0, 1)]
