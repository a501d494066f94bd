"""The rows of a round: everyone's row 0 and forced tokens first, then guesses by their worth."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfold.backends.fake.options import FakeOptions, info_of
from tensorfold.core.engine_api import Info
from tensorfold.core.lane_host.rounds import (
    Offer,
    chained,
    rate,
    share,
    wanted,
    worth_asking,
)
from tests.null.hosting import Rig, job

FEW = settings(max_examples=300, deadline=None, derandomize=True, database=None)


def info(round_rows: int = 100, window_rows: int = 8, drafts: int = 0) -> Info:
    return info_of(FakeOptions(round_rows=round_rows, window_rows=window_rows, drafts=drafts), 97)


def offer(*chances: float, served: int = 0, forced: int = 0) -> Offer:
    return served, forced, chances


@pytest.mark.parametrize(
    ("drafts", "left", "want"),
    [(0, 99, 0), (5, 99, 5), (9, 99, 7), (5, 3, 2), (5, 1, 0), (5, 0, 0)],
)
def test_no_more_drafts_are_asked_than_could_be_used(drafts: int, left: int, want: int) -> None:
    assert wanted(left, info(drafts=drafts)) == want


# -- who gets rows -----------------------------------------------------------------------------


def test_rows_that_cost_nothing_are_granted_while_they_fit_the_likeliest_first() -> None:
    offers = [offer(0.9, 0.9, 0.9), offer(0.5, 0.5), offer()]
    assert share(offers, 8) == [3, 2, 0]
    assert share(offers, 7) == [3, 1, 0]
    assert share(offers, 6) == [3, 0, 0]
    assert share(offers, 3) == [0, 0, 0]


def test_equally_likely_rows_go_one_deep_to_everyone_before_anyone_gets_a_second() -> None:
    offers = [offer(1.0, 1.0, 1.0, 1.0) for _ in range(4)]
    assert share(offers, 4) == [0, 0, 0, 0]
    assert share(offers, 8) == [1, 1, 1, 1]
    assert share(offers, 10) == [2, 2, 1, 1]


def test_the_least_recently_served_take_part_when_not_all_can_ties_in_order() -> None:
    offers = [offer(served=served) for served in (3, 2, 2, 1, 3)]
    assert share(offers, 3) == [-1, 0, 0, 0, -1]
    assert share(offers, 2) == [-1, 0, -1, 0, -1]


def test_nobody_is_passed_by_one_who_needs_fewer_rows() -> None:
    offers = [offer(served=1, forced=3), offer(served=2, forced=5), offer(served=3)]
    assert share(offers, 6) == [0, -1, -1]


def test_rows_are_granted_to_where_the_rate_is_highest_even_over_a_step_of_costs() -> None:
    # Of rows that cost the same as the first, likely or not, all pay; the next step costs double.
    costs = [0.0, *[1.0] * 4, *[2.0] * 4]
    assert share([offer(0.1, 0.1, 0.1, 0.1)], 8, costs) == [3]
    # One likely row beyond a step would not pay for it, four do.
    four = [offer(0.9) for _ in range(4)]
    assert share(four, 8, [0.0, *[1.0] * 4, *[1.95] * 4]) == [0, 0, 0, 0]
    cheap = [0.0, *[1.0] * 4, *[1.8] * 4]
    assert share(four, 8, cheap) == [1, 1, 1, 1]


def test_of_equal_rates_the_fewest_rows_are_granted() -> None:
    assert share([offer(0.5)], 2, [0.0, 2.0, 3.0]) == [0]
    assert share([offer(1.0, 0.5)], 3, [0.0, 2.0, 3.5, 4.375]) == [1]


def test_what_a_round_takes_besides_makes_its_rows_cheaper() -> None:
    costs = [0.0, 1.0, 1.6]
    assert share([offer(0.5)], 2, costs) == [0]
    assert share([offer(0.5)], 2, costs, extra=1.0) == [1]


CHANCES = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.8, 0.9, 1.0]), max_size=7)
OFFERS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0, 0, 0, 1, 3]), CHANCES), min_size=1, max_size=6
)
STEPS = st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.5, 2.0]), min_size=60, max_size=60)


def costs_of(steps: Sequence[float]) -> list[float]:
    costs = [0.0, 1.0]
    for step in steps:
        costs.append(costs[-1] + step)
    return costs


@FEW
@given(offers=OFFERS, round_rows=st.integers(4, 40), steps=STEPS, priced=st.booleans())
def test_a_rounds_rows_keep_every_bound(
    offers: list[Offer], round_rows: int, steps: list[float], priced: bool
) -> None:
    costs = costs_of(steps) if priced else []
    granted = share(offers, round_rows, costs)
    taking = [place for place, count in enumerate(granted) if count >= 0]
    rows = sum(1 + offers[place][1] + granted[place] for place in taking)
    assert 0 < rows <= round_rows
    assert all(granted[place] <= len(offers[place][2]) for place in taking)
    # Whoever sits out was served no earlier than any who takes part, and would not have fitted.
    for place in set(range(len(offers))) - set(taking):
        assert all(offers[place][0] >= offers[other][0] for other in taking)
    if len(taking) < len(offers):
        first = min(
            (place for place, count in enumerate(granted) if count < 0),
            key=lambda place: (offers[place][0], place),
        )
        needed = sum(1 + offers[place][1] for place in taking)
        assert needed + 1 + offers[first][1] > round_rows
    # A row that is left out is never likelier than one that was granted.
    worth = [products(offer[2]) for offer in offers]
    last = min(
        (worth[place][granted[place] - 1] for place in taking if granted[place]), default=1.0
    )
    left_out = [worth[p][granted[p]] for p in taking if granted[p] < len(worth[p])]
    assert max(left_out, default=0.0) <= last


def products(chances: Sequence[float]) -> list[float]:
    found, whole = [], 1.0
    for chance in chances:
        whole *= chance
        found.append(whole)
    return found


@FEW
@given(offers=OFFERS, steps=STEPS, more=st.integers(0, 5))
def test_no_other_number_of_rows_has_a_higher_rate_and_better_chances_never_lower_it(
    offers: list[Offer], steps: list[float], more: int
) -> None:
    costs = costs_of(steps)
    granted = share(offers, 60, costs)
    best = rate(offers, granted, costs, 0.0)
    fewer = [max(0, count - 1) for count in granted]
    assert best >= rate(offers, [0] * len(offers), costs, 0.0)
    assert best >= rate(offers, fewer, costs, 0.0) - 1e-12
    assert best >= rate(offers, [len(offer[2]) for offer in offers], costs, 0.0) - 1e-12
    place = more % len(offers)
    served, forced, chances = offers[place]
    better = [*offers]
    better[place] = served, forced, [min(1.0, chance + 0.1) for chance in chances]
    assert rate(better, share(better, 60, costs), costs, 0.0) >= best - 1e-12


# -- whom to ask for drafts --------------------------------------------------------------------


def test_drafts_are_asked_while_what_they_bring_outweighs_what_asking_takes() -> None:
    costs = [0.0, *[5.0] * 8, *[8.0] * 8]
    free, dear = [0.0] * 9, [0.0, *[6.0] * 8]
    likely = [[0.7, 0.5]]
    assert worth_asking([offer()], likely, 16, costs, free).asking == [True]
    found = worth_asking([offer()], likely, 16, costs, dear)
    assert found.rate < found.without
    # With eight streams a step of rows comes on top.
    found = worth_asking([offer()] * 8, likely * 8, 16, costs, [0.0] * 9)
    assert found.asking == [True] * 8
    assert found.rate > found.without
    found = worth_asking([offer()] * 8, [[0.2, 0.1]] * 8, 16, costs, [0.0] * 9)
    assert found.asking == [False] * 8


def test_streams_that_copy_well_or_take_no_drafts_are_not_asked() -> None:
    costs = [0.0, *[5.0] * 4, *[50.0] * 20]
    offers = [offer(0.9, 0.9), offer(), offer()]
    drafts = [[0.5, 0.5], [0.6, 0.5], []]
    assert worth_asking(offers, drafts, 24, [0.0, *[5.0] * 24], [0.0] * 4).asking == [
        False,
        True,
        False,
    ]
    assert worth_asking(offers, drafts, 24, costs, [0.0] * 4).asking == [False, False, False]


# -- whose guess stands at a row ---------------------------------------------------------------


def test_at_each_row_the_likeliest_guess_stands_and_who_guessed_otherwise_is_out() -> None:
    head = (1, 2, 3), (0.9, 0.5, 0.9), 0, ()
    copied = (1, 7, 8, 9), (0.8, 0.8, 0.8, 0.8), 1, ()
    assert chained([head, copied], 7) == (
        [1, 7, 8, 9],
        [0.9, 0.8, 0.8, 0.8],
        [0, 1, 1, 1],
    )
    assert chained([head, copied], 2) == ([1, 7], [0.9, 0.8], [0, 1])
    sure = (5, 2), (0.95, 0.1), 0, ()
    assert chained([sure, copied], 7) == ([5, 2], [0.95, 0.1], [0, 0])
    assert chained([head], 2) == ((1, 2), (0.9, 0.5), (0, 0))
    tie = (4,), (0.9,), 1, ()
    assert chained([head, tie], 7) == ([1, 2, 3], [0.9, 0.5, 0.9], [0, 0, 0])


GUESSES = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.1, 0.5, 0.9])), max_size=6),
    min_size=1,
    max_size=4,
)


@FEW
@given(raw=GUESSES, most=st.integers(1, 7))
def test_a_chain_is_some_sources_words_in_a_row(
    raw: list[list[tuple[int, float]]], most: int
) -> None:
    words = [[token for token, _ in each] for each in raw]
    worth = [[chance for _, chance in each] for each in raw]
    guesses = [(*both, place, ()) for place, both in enumerate(zip(words, worth, strict=True))]
    tokens, chances, sources = (list(part) for part in chained(guesses, most))
    assert len(tokens) == len(chances) == len(sources) <= most
    for row, source in enumerate(sources):
        assert words[source][: row + 1] == tokens[: row + 1]
        assert worth[source][row] == chances[row]
        agreed = [
            theirs[row]
            for own, theirs in zip(words, worth, strict=True)
            if len(own) > row and own[:row] == tokens[:row]
        ]
        assert chances[row] == max(agreed)
    longer = [own for own in words if own[: len(tokens)] == tokens]
    assert len(tokens) == most or all(len(own) == len(tokens) for own in longer)


# -- in a host ---------------------------------------------------------------------------------


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
