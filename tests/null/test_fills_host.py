"""The fills as a host runs them: traces over the fake, with each setting and with mutants of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tensorfold.core.engine_api import Info
from tensorfold.core.lane_host.fills import ENOUGH, NextFill, Pass, SoFar, Step, next_fill
from tests.null.hosting import Rig, job

STEPPED = {"passes": 0}
ONE_AT_A_TIME = {"passes": 1}


def burst(count: int, choose: NextFill = next_fill, rows: int = 4, **fake: Any) -> Rig:
    """`count` prompts that all wait before the host's first turn, run to their end."""
    rig = Rig(host={"next_fill": choose}, **fake)
    rig.submit(*(job(stream, rows) for stream in range(1, count + 1)))
    rig.run()
    rig.check()
    return rig


def starts(rig: Rig) -> list[int]:
    """The rounds that had run when each pass started."""
    rounds, counts = 0, []
    for call in rig.calls:
        rounds += call.kind == "round"
        if call.kind == "fill":
            counts += [rounds] * sum(piece.start == 0 for piece in call.pieces)
    return counts


# -- what the published change names -----------------------------------------------------------


def three_start_apart(choose: NextFill) -> None:
    """Without drain, three prompts start at increasing round counts."""
    for engine in (STEPPED, ONE_AT_A_TIME):
        for many in (False, True):
            rig = burst(3, choose, fills={"fill_chunks": 1, "fill_many": many}, **engine)
            assert starts(rig) == [0, 1, 2]


def three_start_together(choose: NextFill) -> None:
    """A drain that holds them all starts them before the first round, on both engines."""
    for engine in (STEPPED, ONE_AT_A_TIME):
        assert starts(burst(3, choose, fills={"fill_chunks": 1, "fill_drain": 64}, **engine)) == [
            0,
            0,
            0,
        ]


def two_start_and_a_third_waits(choose: NextFill) -> None:
    """A drain of 8 rows takes 4 + 4; a third 4 waits for a round."""
    for engine in (STEPPED, ONE_AT_A_TIME):
        assert starts(burst(3, choose, fills={"fill_chunks": 1, "fill_drain": 8}, **engine)) == [
            0,
            0,
            1,
        ]


def exactly_as_many_lanes(choose: NextFill) -> None:
    """Full lanes admit no further pass; those already seated still start."""
    for engine in (STEPPED, ONE_AT_A_TIME):
        drain = {"fill_chunks": 1, "fill_drain": 64}
        assert starts(burst(3, choose, lanes=3, fills=drain, **engine)) == [0, 0, 0]
        drain = {"fill_chunks": 1, "fill_drain": 4096}
        assert starts(burst(8, choose, lanes=8, fills=drain, **engine)) == [0] * 8


def two_lanes(choose: NextFill) -> None:
    """The third starts once a lane is free."""
    for engine in (STEPPED, ONE_AT_A_TIME):
        rig = burst(3, choose, lanes=2, fills={"fill_chunks": 1, "fill_drain": 64}, **engine)
        first, second, third = starts(rig)
        assert (first, second) == (0, 0)
        assert third >= 5


def unset_starts_all_first(choose: NextFill) -> None:
    for engine in (STEPPED, ONE_AT_A_TIME):
        assert starts(burst(3, choose, **engine)) == [0, 0, 0]


# -- what the settings mean --------------------------------------------------------------------


def beside_a_live_stream(
    choose: NextFill, *later: tuple[int, int], turns: int = 12, **fills: Any
) -> list[str]:
    """The trace after stream 1 went live and (stream, rows) came; chunks of 64 rows."""
    rig = Rig(host={"next_fill": choose}, fills={"fill_chunks": 1, **fills})
    rig.submit(job(1, 4, 60))
    rig.host.turn()
    rig.submit(*(job(stream, rows, 30) for stream, rows in later))
    for _ in range(turns):
        rig.host.turn()
    seen = rig.fills()[2:]
    rig.run()
    rig.check()
    return seen


def rounds_run_between_pieces(choose: NextFill) -> None:
    seen = beside_a_live_stream(choose, (2, 192), fill_rounds=3)
    assert " ".join(seen[:10]) == "P2 R R R P2 R R R P2 R"


def many_take_turns_a_round_apart(choose: NextFill) -> None:
    seen = beside_a_live_stream(choose, (2, 128), (3, 128), fill_many=True)
    assert " ".join(seen[:8]) == "P2 R P3 R P2 R P3 R"


def small_ones_cut_in_once_a_piece(choose: NextFill) -> None:
    seen = beside_a_live_stream(choose, (2, 256), (3, 4), (4, 4), (5, 4), fill_cut_in=8)
    assert " ".join(seen[:12]) == "P2 R P3 R P2 R P4 R P2 R P5 R"


def only_a_pass_that_begins_overtakes(choose: NextFill) -> None:
    """Two begun passes take turns; neither overtook the other, so a fresh one goes next."""
    rig = Rig(
        host={"next_fill": choose}, fills={"fill_chunks": 1, "fill_many": True, "fill_rounds": 3}
    )
    rig.submit(job(1, 4, 60), job(2, 256), job(4, 256))
    for _ in range(7):
        rig.host.turn()
    rig.submit(job(5, 256))
    rig.run()
    rig.check()
    assert " ".join(rig.fills()).startswith("P1 R P2 R P4 R R R P2 R R P5 R R R P4")


def a_drain_cuts_in_as_one(choose: NextFill) -> None:
    seen = beside_a_live_stream(
        choose, (2, 256), (3, 4), (4, 4), (5, 4), fill_cut_in=8, fill_drain=8
    )
    assert " ".join(seen[:9]) == "P2 R P3 P4 R P2 R P5 R"


def rounds_are_counted_from_the_last_step_of_any_pass(choose: NextFill) -> None:
    """One that cuts in restarts the count, and holds the begun pass back anew."""
    seen = beside_a_live_stream(choose, (2, 256), (3, 4), fill_cut_in=8, fill_rounds=2)
    assert " ".join(seen[:8]) == "P2 R P3 R R P2 R R"


CHECKS = [
    rounds_are_counted_from_the_last_step_of_any_pass,
    three_start_apart,
    three_start_together,
    two_start_and_a_third_waits,
    exactly_as_many_lanes,
    two_lanes,
    unset_starts_all_first,
    rounds_run_between_pieces,
    many_take_turns_a_round_apart,
    small_ones_cut_in_once_a_piece,
    a_drain_cuts_in_as_one,
    only_a_pass_that_begins_overtakes,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_fills_do_what_they_say(check: Callable[[NextFill], None]) -> None:
    check(next_fill)


# -- mutants -----------------------------------------------------------------------------------


def asks_no_more(
    line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
) -> Step | None:
    return None if turn.steps else next_fill(line, live, turn, rounds_since, info)


def ignores_the_budget(
    line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
) -> Step | None:
    limit = 1 << 40 if info.fill_drain else 0
    return next_fill(line, live, turn, rounds_since, replace(info, fill_drain=limit))


def full_lanes_stop_seated_passes(
    line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
) -> Step | None:
    full = live + len(line) >= info.lanes
    return None if turn.steps and full else next_fill(line, live, turn, rounds_since, info)


class CountNotRestarted:
    """Counts rounds since the first fill step."""

    def __init__(self) -> None:
        self.base = 0
        self.last = 0

    def __call__(
        self, line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
    ) -> Step | None:
        if rounds_since < self.last < ENOUGH:
            self.base += self.last
        self.last = rounds_since
        return next_fill(line, live, turn, self.base + rounds_since, info)


def holds_back_never(
    line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
) -> Step | None:
    return next_fill(line, live, turn, ENOUGH, info)


def holds_back_for_ever(
    line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
) -> Step | None:
    return next_fill(line, live, turn, 0, info)


def cuts_in_twice(
    line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
) -> Step | None:
    forgotten = [replace(entry, overtaken=False) for entry in line]
    return next_fill(forgotten, live, turn, rounds_since, info)


def drains_after_a_piece(
    line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
) -> Step | None:
    return next_fill(line, live, replace(turn, ended=True), rounds_since, info)


def one_at_a_time(
    line: Sequence[Pass], live: int, turn: SoFar, rounds_since: int, info: Info
) -> Step | None:
    return next_fill(line, live, turn, rounds_since, replace(info, fill_many=False))


def a_piece_ends_the_fills(choose: NextFill) -> None:
    seen = beside_a_live_stream(choose, (2, 200), (3, 4), fill_many=True, fill_drain=4096)
    assert " ".join(seen[:4]) == "P2 R P3 R"


MUTANTS: list[tuple[Callable[[], NextFill], Callable[[NextFill], None]]] = [
    (lambda: asks_no_more, three_start_together),
    (lambda: asks_no_more, unset_starts_all_first),
    (lambda: ignores_the_budget, two_start_and_a_third_waits),
    (lambda: full_lanes_stop_seated_passes, exactly_as_many_lanes),
    (CountNotRestarted, rounds_run_between_pieces),
    (lambda: holds_back_never, rounds_run_between_pieces),
    (lambda: holds_back_for_ever, rounds_run_between_pieces),
    (lambda: cuts_in_twice, small_ones_cut_in_once_a_piece),
    (lambda: cuts_in_twice, a_drain_cuts_in_as_one),
    (lambda: drains_after_a_piece, a_piece_ends_the_fills),
    (lambda: one_at_a_time, many_take_turns_a_round_apart),
]


@pytest.mark.parametrize(("mutant", "check"), MUTANTS)
def test_a_mutant_fails_its_test(
    mutant: Callable[[], NextFill], check: Callable[[NextFill], None]
) -> None:
    check(next_fill)
    with pytest.raises(AssertionError):
        check(mutant())


# -- one host, several engines -----------------------------------------------------------------


def test_one_host_over_two_backends_with_different_drains_shows_two_traces() -> None:
    traces = [
        burst(3, fills={"fill_chunks": 1, "fill_many": True, "fill_drain": drain}).fills()
        for drain in (0, 64)
    ]
    assert traces[0][:6] == ["P1", "R", "P2", "R", "P3", "R"]
    assert traces[1][:4] == ["P1", "P2", "P3", "R"]


@pytest.mark.parametrize("engine", [STEPPED, ONE_AT_A_TIME])
def test_unset_the_turn_is_the_plain_one(engine: dict[str, int]) -> None:
    rig = burst(4, rows=130, **engine)
    assert rig.fills()[:13] == ["P1"] * 3 + ["P2"] * 3 + ["P3"] * 3 + ["P4"] * 3 + ["R"]


def test_with_many_and_nothing_live_the_line_rotates() -> None:
    rig = burst(3, rows=128, fills={"fill_chunks": 1, "fill_many": True})
    assert rig.fills()[:7] == ["P1", "P2", "P3", "P1", "R", "P2", "R"]


def test_rounds_0_gives_the_trace_of_1_without_drain() -> None:
    for fills in ({}, {"fill_many": True}, {"fill_cut_in": 8}):
        traces = [
            beside_a_live_stream(
                next_fill, (2, 256), (3, 4), (4, 150), (5, 4), turns=20, fill_rounds=rounds, **fills
            )
            for rounds in (0, 1)
        ]
        assert traces[0] == traces[1]


@pytest.mark.parametrize(
    ("rounds", "trace"),
    [
        (0, "P2 R P2 R P2 R P2 P3 P4 R"),
        (1, "P2 R P2 R P2 R P2 P3 P4 R"),
        (3, "P2 R R R P2 R R R P2 R R R P2 P3 P4 R"),
    ],
)
def test_rounds_with_drain(rounds: int, trace: str) -> None:
    seen = beside_a_live_stream(
        next_fill, (2, 250), (3, 4), (4, 4), turns=20, fill_rounds=rounds, fill_drain=200
    )
    assert " ".join(seen).startswith(trace)


def test_held_back_with_many_the_small_ones_drain_past_it_once() -> None:
    seen = beside_a_live_stream(
        next_fill, (2, 250), (3, 4), (4, 4), fill_rounds=3, fill_many=True, fill_drain=200
    )
    assert " ".join(seen).startswith("P2 R P3 P4 R R R P2")


SMOOTH = {"fill_many": True, "fill_cut_in": 64, "fill_drain": 512, "fill_pack": 256}


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("fills", [{"fill_many": True}, {"fill_cut_in": 64}, SMOOTH])
@pytest.mark.parametrize("since", range(5))
def test_a_small_prompt_beside_a_long_one_starts_within_two_pieces(
    rounds: int, fills: dict[str, int], since: int
) -> None:
    fills = {"fill_chunks": 1, "fill_rounds": rounds, **fills}
    rig = Rig(context=8192, pack_rows=512, fills=fills)
    rig.submit(job(1, 4, 400), job(2, 6400))
    for _ in range(4 + since):
        rig.host.turn()
    before = len(rig.fills())
    rig.submit(job(4, 60))
    rig.run()
    rig.check()
    seen = rig.fills()[before:]
    assert seen[: seen.index("P4")].count("P2") <= 2


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("fills", [{"fill_many": True}, {"fill_cut_in": 64}, SMOOTH])
def test_a_long_prompt_goes_in_though_small_ones_never_cease(
    rounds: int, fills: dict[str, int]
) -> None:
    fills = {"fill_chunks": 1, "fill_rounds": rounds, **fills}
    rig = Rig(pack_rows=512, fills=fills)
    rig.submit(job(1, 4, 400), job(2, 1280))
    for stream in range(3, 600):
        rig.submit(job(stream, 4 + stream % 7, 3))
        rig.host.turn()
    seen = rig.fills()
    first, *_, last = (place for place, forward in enumerate(seen) if forward == "P2")
    assert seen.count("P2") == 20
    assert seen[first:last].count("R") <= 19 * (8 * max(1, rounds) + 1)
    rig.run()
    rig.check()


def test_a_prompt_over_the_drain_goes_first_and_alone() -> None:
    rig = Rig(fills={"fill_chunks": 2, "fill_drain": 20})
    rig.submit(job(1, 100), job(2, 4), job(3, 4))
    rig.run()
    rig.check()
    assert " ".join(rig.fills()[:6]) == "P1 P1 R P2 P3 R"


def test_a_drain_never_passes_its_rows_but_for_the_first_step() -> None:
    rig = Rig(lanes=16, fills={"fill_chunks": 1, "fill_drain": 30})
    rig.submit(*(job(stream, 1 + stream * 7 % 23) for stream in range(1, 17)))
    rig.run()
    rig.check()
    rows, steps = 0, 0
    for call in rig.calls:
        if call.kind == "round":
            rows = steps = 0
        if call.kind == "fill":
            rows += sum(piece.end - piece.start for piece in call.pieces)
            steps += 1
            assert steps == 1 or rows <= 30
