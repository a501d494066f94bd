"""The windows of a round: everyone's row 0 first, then guesses, fairly."""

from dataclasses import dataclass

import pytest

from tensorfold.backends.fake.options import FakeOptions, info_of
from tensorfold.core.engine_api import Info, Window
from tensorfold.core.lane_host.rounds import windows
from tests.null.hosting import Rig, job


@dataclass(frozen=True, kw_only=True)
class Place:
    stream: int
    guesses: tuple[int, ...] = ()
    left: int = 100
    served: int = 0
    draws: bool = True
    pending: int = 50


def info(round_rows: int = 100, window_rows: int = 8, drafts: int = 0) -> Info:
    return info_of(FakeOptions(round_rows=round_rows, window_rows=window_rows, drafts=drafts), 97)


def rows(made: list[Window]) -> dict[int, int]:
    return {window.stream: len(window.tokens) for window in made}


def test_a_window_is_the_pending_token_and_its_guesses() -> None:
    seats = [Place(stream=1, guesses=(1, 2, 3)), Place(stream=2)]
    assert windows(seats, info()) == [
        Window(stream=1, tokens=(50, 1, 2, 3)),
        Window(stream=2, tokens=(50,)),
    ]


@pytest.mark.parametrize(
    ("window_rows", "left", "count"), [(8, 100, 6), (4, 100, 3), (8, 3, 2), (8, 1, 0), (1, 9, 0)]
)
def test_guesses_are_bounded_by_the_window_and_by_what_is_left(
    window_rows: int, left: int, count: int
) -> None:
    seats = [Place(stream=1, guesses=(1, 2, 3, 4, 5, 6), left=left)]
    assert rows(windows(seats, info(window_rows=window_rows))) == {1: 1 + count}


@pytest.mark.parametrize(
    ("drafts", "left", "draws", "want"),
    [
        (0, 100, True, 0),
        (5, 100, True, 5),
        (9, 100, True, 7),
        (5, 100, False, 0),
        (5, 4, True, 2),
        (5, 2, True, 0),
        (5, 1, True, 0),
    ],
)
def test_no_more_drafts_are_asked_than_could_be_used(
    drafts: int, left: int, draws: bool, want: int
) -> None:
    (window,) = windows([Place(stream=1, left=left, draws=draws)], info(drafts=drafts))
    assert window.want == want


def test_when_not_all_guesses_fit_every_stream_keeps_its_row_0() -> None:
    seats = [Place(stream=stream, guesses=(1, 2, 3, 4)) for stream in range(4)]
    assert rows(windows(seats, info(round_rows=4))) == dict.fromkeys(range(4), 1)
    assert rows(windows(seats, info(round_rows=8))) == dict.fromkeys(range(4), 2)
    assert rows(windows(seats, info(round_rows=10))) == {0: 3, 1: 3, 2: 2, 3: 2}


def test_the_least_recently_served_come_first_ties_in_order() -> None:
    seats = [Place(stream=s, served=served) for s, served in enumerate((3, 2, 2, 1, 3))]
    assert list(rows(windows(seats, info(round_rows=3)))) == [1, 2, 3]
    assert list(rows(windows(seats, info(round_rows=2)))) == [1, 3]


def test_streams_beyond_a_rounds_rows_take_turns_and_reply_as_alone() -> None:
    for round_rows in (1, 2, 3, 5, 7):
        rig = Rig(lanes=6, round_rows=round_rows, drafts=3)
        rig.submit(*(job(stream, most=12) for stream in range(1, 9)))
        rig.run()
        rig.check()
    rig = Rig(lanes=4, round_rows=2)
    rig.submit(*(job(stream, most=9) for stream in range(1, 5)))
    rig.run()
    served = [call.streams for call in rig.calls if call.kind == "round"]
    assert served[:4] == [(1, 2), (3, 4), (1, 2), (3, 4)]


def test_streams_that_keep_coming_starve_nobody_of_a_rounds_rows() -> None:
    rig = Rig(lanes=2, round_rows=1, fills={"fill_chunks": 1})
    rig.submit(job(1, 4, 20))
    for stream in range(2, 12):
        rig.submit(job(stream, 4, 2))
        rig.host.turn()
    rounds = [call.streams for call in rig.calls if call.kind == "round"]
    assert all((1,) in rounds[place : place + 2] for place in range(len(rounds) - 1))
    rig.run()
    rig.check()
