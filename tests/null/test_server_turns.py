"""The turns' trace: in its file, and as the last turns on the admin's route."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tensorfold.backends.fake.options import FakeOptions
from tensorfold.core.lane_host.trace import TurnTrace
from tensorfold.core.server.trace_file import MOST_TURNS, MOST_WAITING, TraceFile, json_of
from tests.null.calling import server
from tests.null.hosting import Rig, eventually, job

pytestmark = pytest.mark.asyncio


def turns_of(rig: Rig) -> list[TurnTrace]:
    turns: list[TurnTrace] = []
    rig.host._turns.trace = turns.append
    rig.run()
    return turns


def some_turns() -> list[TurnTrace]:
    rig = Rig(drafts=2, pack_rows=64, fills={"fill_pack": 64}, cost=lambda call: 0.25)
    rig.submit(job(1), job(2, 5, most=3))
    return turns_of(rig)


async def test_a_turn_tells_its_pieces_windows_rows_and_times_and_no_tokens() -> None:
    first, second, *_ = (json.loads(json_of(turn)) for turn in some_turns())
    assert first["forwards"][0] == {
        "launched": 0.5,
        "landed": 1.0,
        "rows": 9,
        "pieces": [{"stream": 1, "start": 0, "end": 4}, {"stream": 2, "start": 0, "end": 5}],
    }
    (round_,) = second["forwards"]
    assert round_["rows"] == sum(window["rows"] for window in round_["windows"])
    assert [window["stream"] for window in round_["windows"]] == [1, 2]
    assert {"stream", "rows", "tokens"} == set(round_["windows"][0])
    counts = {name: first[name] for name in ("turn", "waiting", "filling", "live")}
    assert counts == {"turn": 1, "waiting": 0, "filling": 0, "live": 2}
    assert first["began"] <= first["forwards"][0]["launched"] < first["ended"]


async def test_a_turn_tells_the_guesses_so_far_by_source() -> None:
    rig = Rig(drafts=2)
    rig.submit(job(1, most=30), job(2, most=30))
    turns = turns_of(rig)
    told = [json.loads(json_of(turn)).get("drafts", {}) for turn in turns]
    assert told[0] == {}
    stats = rig.host.stats()
    drafted = [each.get("head", [0, 0])[0] for each in told]
    assert drafted == sorted(drafted)
    # The last round is counted when its streams end.
    assert told[-1] == {"head": [stats.drafted["head"], stats.accepted["head"]]}


async def test_the_last_turns_are_there_for_an_admin() -> None:
    async with server(admin=True) as client:
        assert await client.get("/debug/turns") == (200, {"turns": []})
        await client.chat()
        _, all_of_them = await client.get("/debug/turns")
        assert [turn["turn"] for turn in all_of_them["turns"]] == list(range(1, 8))
        assert await client.get("/debug/turns?last=2") == (
            200,
            {"turns": all_of_them["turns"][-2:]},
        )
        for last in ("0", "-1", "x", "1.5", "", "²", str(MOST_TURNS + 1), "9" * 5000):
            status, body = await client.get(f"/debug/turns?last={last}")
            assert (status, body["error"]["param"]) == (400, "last"), last


async def test_for_anyone_else_there_is_no_such_route() -> None:
    async with server() as client:
        status, body = await client.get("/debug/turns")
        _, unknown = await client.get("/debug/nothing")
    assert status == 404
    assert json.dumps(body).replace("turns", "nothing") == json.dumps(unknown)


async def test_no_more_turns_are_kept_than_the_bound() -> None:
    async with server(FakeOptions(context=4096), admin=True) as client:
        for _ in range(2):
            await client.plain(prompt="abc", max_tokens=MOST_TURNS - 200, ignore_eos=True)
        _, body = await client.get(f"/debug/turns?last={MOST_TURNS}")
    numbers = [turn["turn"] for turn in body["turns"]]
    assert len(numbers) == MOST_TURNS
    assert numbers == list(range(numbers[0], numbers[0] + MOST_TURNS))


async def test_the_file_and_the_route_tell_the_same(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    async with server(admin=True, trace=str(path)) as client:
        await client.chat()
        _, body = await client.get("/debug/turns")
    assert [json.loads(line) for line in path.read_text().splitlines()] == body["turns"]


# -- a disk in trouble -------------------------------------------------------------------------


class Disk:
    """A file that fails or stands still."""

    def __init__(self, write: Any) -> None:
        self.write = write

    def flush(self) -> None:
        return None

    def close(self) -> None:
        return None


async def test_a_disk_that_is_full_ends_the_trace_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(text: str) -> None:
        raise OSError(28, "No space left on device")

    trace = TraceFile(tmp_path / "trace.jsonl")
    trace.file.close()
    trace.file = Disk(full)  # type: ignore[assignment]
    first, *later = some_turns()
    with caplog.at_level(logging.ERROR, "tensorfold.server"):
        trace(first)
        eventually(lambda: trace.broken)
        for turn in later:
            trace(turn)
        trace.close()
    assert len(trace.turns) == 0
    assert caplog.messages == ["the trace ends here: No space left on device"]


async def test_turns_that_a_slow_disk_cannot_take_are_counted(tmp_path: Path) -> None:
    trace = TraceFile(tmp_path / "trace.jsonl")
    written: list[str] = []
    trace.file.close()
    turn, *_ = some_turns()

    def slow(text: str) -> None:
        if not written:
            for _ in range(MOST_WAITING + 3):
                trace(turn)
        written.append(text)

    trace.file = Disk(slow)  # type: ignore[assignment]
    trace(turn)
    eventually(lambda: trace.left_out == 3)
    trace.close()
    lines = "".join(written).splitlines()
    assert lines.count('{"left_out":3}') == 1
    assert len(lines) == 1 + MOST_WAITING + 1
