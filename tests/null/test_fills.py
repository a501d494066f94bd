"""The next fill, case by case: what the line, the live count and this turn let follow."""

from dataclasses import dataclass, replace

import pytest

from tensorfold.backends.fake.options import FakeOptions, info_of
from tensorfold.core.engine_api import Info
from tensorfold.core.lane_host.fills import (
    ENOUGH,
    Pass,
    SoFar,
    Step,
    forwards,
    is_whole,
    next_fill,
)

CHUNK = 64
FIRST = SoFar()


def info(passes: int = 0, pack_rows: int = 512, lanes: int = 8, **fills: object) -> Info:
    return info_of(
        FakeOptions(lanes=lanes, chunk_rows=CHUNK, passes=passes, pack_rows=pack_rows, fills=fills),
        97,
    )


def fresh(stream: int, rows: int, cached: int = 0, marks: tuple[int, ...] = ()) -> Pass:
    return Pass(stream=stream, start=cached, end=cached + rows, marks=marks)


def begun(stream: int, rows: int, *, overtaken: bool = False) -> Pass:
    return Pass(stream=stream, start=CHUNK, end=CHUNK + rows, begun=True, overtaken=overtaken)


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    info: Info
    line: list[Pass]
    gives: tuple[object, ...] | None  # streams, rows, kind
    live: int = 1
    turn: SoFar = FIRST
    since: int = ENOUGH


UNSET = info()
ONE = info(fill_chunks=1)
MANY = info(fill_chunks=1, fill_many=True)
CUT = info(fill_chunks=1, fill_cut_in=20)
DRAIN = info(fill_chunks=1, fill_drain=100)
AFTER_40 = SoFar(steps=1, rows=40)

CASES = [
    # Unset: whole prompts, one after the other, at most `lanes` steps.
    Case(name="unset, nobody waits", info=UNSET, line=[], gives=None),
    Case(name="unset, whole", info=UNSET, line=[fresh(1, 900)], gives=((1,), 900, "whole")),
    Case(
        name="unset, steps follow one another",
        info=UNSET,
        line=[fresh(2, 10)],
        turn=SoFar(steps=7, rows=9000, ended=False),
        gives=((2,), 10, "whole"),
    ),
    Case(
        name="unset, at most lanes steps",
        info=UNSET,
        line=[fresh(2, 10)],
        turn=SoFar(steps=8, rows=80),
        gives=None,
    ),
    Case(
        name="unset, cached rows do not count",
        info=UNSET,
        line=[fresh(1, 40, cached=64)],
        gives=((1,), 40, "whole"),
    ),
    # CHUNKS.
    Case(name="chunks, whole", info=ONE, line=[fresh(1, 64)], gives=((1,), 64, "whole")),
    Case(name="chunks, a piece", info=ONE, line=[fresh(1, 65)], gives=((1,), 64, "piece")),
    Case(name="chunks, the last piece", info=ONE, line=[begun(1, 5)], gives=((1,), 5, "piece")),
    Case(
        name="chunks, a resumed prompt is whole by its rows to run",
        info=ONE,
        line=[fresh(1, 60, cached=640)],
        gives=((1,), 60, "whole"),
    ),
    Case(
        name="several chunks a step",
        info=info(fill_chunks=3),
        line=[fresh(1, 500)],
        gives=((1,), 192, "piece"),
    ),
    Case(name="chunks, one step a turn", info=ONE, line=[fresh(2, 4)], turn=AFTER_40, gives=None),
    Case(
        name="without MANY a begun pass is finished first",
        info=ONE,
        line=[begun(1, 200), fresh(2, 4)],
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="without MANY nobody goes while the begun pass is held back",
        info=ONE,
        line=[begun(1, 200), fresh(2, 4)],
        since=0,
        gives=None,
    ),
    # ROUNDS.
    Case(name="held back", info=ONE, line=[begun(1, 200)], since=0, gives=None),
    Case(
        name="not held back once the rounds have run",
        info=info(fill_chunks=1, fill_rounds=3),
        line=[begun(1, 200)],
        since=3,
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="held back until they have",
        info=info(fill_chunks=1, fill_rounds=3),
        line=[begun(1, 200)],
        since=2,
        gives=None,
    ),
    Case(
        name="nothing is held back with nothing live",
        info=info(fill_chunks=1, fill_rounds=3),
        line=[begun(1, 200)],
        live=0,
        since=0,
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="rounds 0 holds nothing back",
        info=info(fill_chunks=1, fill_rounds=0),
        line=[begun(1, 200)],
        since=0,
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="a pass that has not begun is never held back",
        info=ONE,
        line=[fresh(1, 200)],
        since=0,
        gives=((1,), 64, "piece"),
    ),
    # MANY.
    Case(
        name="many, the head of the line",
        info=MANY,
        line=[fresh(2, 200), begun(1, 200)],
        gives=((2,), 64, "piece"),
    ),
    Case(
        name="many, the first fresh pass passes a head that is held back",
        info=MANY,
        line=[begun(1, 200), begun(2, 200), fresh(3, 200), fresh(4, 4)],
        since=0,
        gives=((3,), 64, "piece"),
    ),
    Case(
        name="many, but not one that was overtaken",
        info=MANY,
        line=[begun(1, 200, overtaken=True), fresh(2, 200)],
        since=0,
        gives=None,
    ),
    Case(
        name="many, an overtaken head goes in its turn",
        info=MANY,
        line=[begun(1, 200, overtaken=True), fresh(2, 200)],
        since=1,
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="many, all begun and held back",
        info=MANY,
        line=[begun(1, 200), begun(2, 200)],
        since=0,
        gives=None,
    ),
    # CUT_IN.
    Case(
        name="cut in, small and whole",
        info=CUT,
        line=[begun(1, 200), fresh(2, 20)],
        gives=((2,), 20, "cut_in"),
    ),
    Case(
        name="cut in, even while the begun pass is held back",
        info=CUT,
        line=[begun(1, 200), fresh(2, 20)],
        since=0,
        gives=((2,), 20, "cut_in"),
    ),
    Case(
        name="cut in, one row too many",
        info=CUT,
        line=[begun(1, 200), fresh(2, 21)],
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="cut in, only the first that has not begun",
        info=CUT,
        line=[begun(1, 200), fresh(2, 21), fresh(3, 4)],
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="cut in, once",
        info=CUT,
        line=[begun(1, 200, overtaken=True), fresh(2, 20)],
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="cut in, by the first begun pass of the line",
        info=replace(CUT, fill_many=True),
        line=[begun(1, 200, overtaken=True), begun(2, 200), fresh(3, 20)],
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="cut in is for whole passes",
        info=info(fill_chunks=1, fill_cut_in=500),
        line=[begun(1, 200), fresh(2, 65)],
        gives=((1,), 64, "piece"),
    ),
    Case(
        name="nothing to cut in before",
        info=CUT,
        line=[fresh(1, 20)],
        gives=((1,), 20, "whole"),
    ),
    # DRAIN.
    Case(
        name="drain, up to the limit",
        info=DRAIN,
        line=[fresh(2, 60)],
        turn=AFTER_40,
        gives=((2,), 60, "drained"),
    ),
    Case(name="drain, one row past it", info=DRAIN, line=[fresh(2, 61)], turn=AFTER_40, gives=None),
    Case(
        name="drain, the first step runs even alone past it",
        info=info(fill_chunks=1, fill_drain=8),
        line=[fresh(1, 60)],
        gives=((1,), 60, "whole"),
    ),
    Case(
        name="drain, not after a piece that ended nothing",
        info=DRAIN,
        line=[fresh(2, 4)],
        turn=SoFar(steps=1, rows=40, ended=False),
        gives=None,
    ),
    Case(
        name="drain, not a pass that needs pieces",
        info=DRAIN,
        line=[fresh(2, 65)],
        turn=SoFar(steps=1, rows=1),
        gives=None,
    ),
    Case(
        name="drain, not a begun pass",
        info=replace(DRAIN, fill_rounds=0),
        line=[begun(1, 5), fresh(2, 4)],
        turn=AFTER_40,
        since=0,
        gives=None,
    ),
    Case(
        name="drain, not stopped by a begun pass that is held back and may be overtaken",
        info=replace(DRAIN, fill_many=True),
        line=[begun(1, 500), fresh(2, 4)],
        turn=AFTER_40,
        since=0,
        gives=((2,), 4, "drained"),
    ),
    Case(
        name="drain, stopped by one that was overtaken",
        info=replace(DRAIN, fill_many=True),
        line=[begun(1, 500, overtaken=True), fresh(2, 4)],
        turn=AFTER_40,
        since=0,
        gives=None,
    ),
    Case(
        name="drain, small ones cut in together",
        info=replace(DRAIN, fill_cut_in=20),
        line=[begun(1, 500), fresh(2, 4)],
        turn=SoFar(steps=1, rows=20),
        since=0,
        gives=((2,), 4, "cut_in"),
    ),
    # PACK.
    Case(
        name="pack, neighbours up to its rows",
        info=info(fill_pack=50),
        line=[fresh(1, 20), fresh(2, 20), fresh(3, 10), fresh(4, 1)],
        gives=((1, 2, 3), 50, "packed"),
    ),
    Case(
        name="pack, up to what the engine packs",
        info=info(fill_pack=500, pack_rows=40),
        line=[fresh(1, 20), fresh(2, 20), fresh(3, 10)],
        gives=((1, 2), 40, "packed"),
    ),
    Case(
        name="pack, neighbours only",
        info=info(fill_pack=50),
        line=[fresh(1, 20), fresh(2, 40), fresh(3, 10)],
        gives=((1,), 20, "whole"),
    ),
    Case(
        name="pack, no pass with a mark inside",
        info=info(fill_pack=200),
        line=[fresh(1, 20), fresh(2, 40, marks=(16,)), fresh(3, 10)],
        gives=((1,), 20, "whole"),
    ),
    Case(
        name="pack, a mark at its first row is not inside",
        info=info(fill_pack=200),
        line=[fresh(1, 20), fresh(2, 40, cached=16, marks=(16,))],
        gives=((1, 2), 60, "packed"),
    ),
    Case(
        name="pack, only what fits a chunk",
        info=info(fill_pack=200),
        line=[fresh(1, 65), fresh(2, 10)],
        gives=((1,), 65, "whole"),
    ),
    Case(
        name="pack, no begun pass",
        info=info(fill_chunks=1, fill_many=True, fill_pack=200),
        line=[fresh(1, 10), begun(2, 10), fresh(3, 10)],
        gives=((1,), 10, "whole"),
    ),
    Case(
        name="pack, one that cuts in takes only small ones",
        info=info(fill_chunks=1, fill_cut_in=20, fill_pack=200),
        line=[begun(1, 200), fresh(2, 20), fresh(3, 20), fresh(4, 21), fresh(5, 3)],
        gives=((2, 3), 40, "packed"),
    ),
    Case(
        name="pack, a drained one stays under the drain",
        info=info(fill_chunks=1, fill_drain=100, fill_pack=200),
        line=[fresh(2, 30), fresh(3, 30), fresh(4, 1)],
        turn=AFTER_40,
        gives=((2, 3), 60, "packed"),
    ),
    Case(
        name="pack, the first step of a turn may go past the drain",
        info=info(fill_chunks=1, fill_drain=8, fill_pack=200),
        line=[fresh(2, 30), fresh(3, 30)],
        gives=((2, 3), 60, "packed"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_next_fill(case: Case) -> None:
    line = list(case.line)
    step = next_fill(line, case.live, case.turn, case.since, case.info)
    if case.gives is None:
        assert step is None
    else:
        streams, rows, kind = case.gives
        assert step == Step(streams=streams, rows=rows, kind=kind)
    assert line == case.line


def test_whole_is_what_the_first_step_ends() -> None:
    two = info(fill_chunks=2)
    assert is_whole(fresh(1, 128), two)
    assert not is_whole(fresh(1, 129), two)
    assert not is_whole(begun(1, 5), two)
    assert is_whole(fresh(1, 10_000), UNSET)


@pytest.mark.parametrize(
    ("entry", "rows", "cuts"),
    [
        (fresh(1, 10), 10, [(0, 10)]),
        (fresh(1, 64), 64, [(0, 64)]),
        (fresh(1, 130), 130, [(0, 64), (64, 128), (128, 130)]),
        (fresh(1, 130), 128, [(0, 64), (64, 128)]),
        (fresh(1, 100, cached=16), 100, [(16, 80), (80, 116)]),
        (
            fresh(1, 130, marks=(16, 80, 128)),
            130,
            [(0, 16), (16, 64), (64, 80), (80, 128), (128, 130)],
        ),
        (fresh(1, 130, marks=(64,)), 64, [(0, 64)]),
        (begun(1, 70), 64, [(64, 128)]),
    ],
)
def test_forwards_are_cut_at_chunk_ends_and_at_marks(
    entry: Pass, rows: int, cuts: list[tuple[int, int]]
) -> None:
    assert forwards(entry, rows, CHUNK) == cuts
