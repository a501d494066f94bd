"""Drafters of the host: they change how fast a reply comes, and nothing of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from tensorfold.backends.fake import model
from tensorfold.core.copies import Copies
from tensorfold.core.drafter_api import Guesses
from tensorfold.core.engine_api import Window
from tensorfold.core.lane_host.chances import UNKNOWN
from tensorfold.core.lane_host.context import Context
from tensorfold.core.lane_host.guessing import Guessers
from tests.null.drafters import (
    LIES,
    Drafter,
    after_threes,
    knowing,
    long_words,
    mistaken,
)
from tests.null.hosting import Rig, job, logprobs_of, solo


def rig_with(*drafters: Any, **fake: Any) -> Rig:
    return Rig(host={"drafters": list(drafters)}, **fake)


def silent(context: Sequence[int], most: int) -> Guesses:
    return Guesses()


def counts_by_source(rig: Rig) -> dict[str, tuple[int, int]]:
    stats = rig.host.stats()
    return {name: (stats.drafted[name], stats.accepted[name]) for name in stats.drafted}


def test_a_drafter_that_knows_the_reply_saves_the_rounds_it_can() -> None:
    knows = Drafter("knows", silent)
    rig = rig_with(knows, window_rows=4)
    knows.ask = knowing(rig.jobs)
    rig.submit(*(job(stream, most=13) for stream in (1, 2, 3)))
    rig.run()
    rig.check()
    # One token comes with the prompt, four with each round.
    assert {end.counts.rounds for end in rig.reader.ends.values()} == {3}
    assert counts_by_source(rig) == {"head": (0, 0), "knows": (27, 27)}
    assert set(knows.told) == {3}
    assert rig.reader.ends[1].counts.by_source == {"knows": (9, 9)}


def test_a_drafter_is_told_how_many_of_its_guesses_came_true() -> None:
    made = job(1, most=20)
    whole = solo(made)

    def propose(context: Sequence[int], most: int) -> Guesses:
        place = len(context) - len(made.prompt)
        tokens = whole[place : place + 3]
        tokens[1:2] = [(tokens[1] + 1) % model.VOCAB] if len(tokens) > 1 else []
        return Guesses(tokens[:most], [0.9] * len(tokens[:most]))

    drafter = Drafter("half", propose)
    rig = rig_with(drafter)
    rig.submit(made)
    rig.run()
    rig.check()
    assert set(drafter.told[:-1]) == {1}
    counts = rig.reader.ends[1].counts
    assert counts.accepted == counts.by_source["half"][1] == sum(drafter.told)


@pytest.mark.parametrize("lie", LIES)
def test_a_drafter_that_raises_or_lies_is_given_up_by_name_and_hurts_nobody(
    lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    propose, words = LIES[lie]
    liar = Drafter("liar", propose)
    rig = rig_with(liar, Copies(), drafts=2)
    rig.submit(*(job(stream, most=15, logprobs=1) for stream in range(1, 5)))
    with caplog.at_level(logging.WARNING, logger="tensorfold.host"):
        rig.run()
    rig.check()
    # Once a stream, and never asked again.
    assert rig.host.stats().drafter_faults["liar"] == len(liar.contexts) == 4
    assert rig.host.stats().drafted["head"] > 0
    told = [record.getMessage() for record in caplog.records]
    assert all("drafter liar guesses no more for stream" in each for each in told)
    assert words in told[0]


@pytest.mark.parametrize("nothing", [Guesses(), Guesses([], []), ([], ())])
def test_a_drafter_with_nothing_to_say_is_asked_again(nothing: Any) -> None:
    shy = Drafter("shy", lambda context, most: nothing)
    rig = rig_with(shy)
    rig.submit(job(1, most=9))
    rig.run()
    rig.check()
    assert len(shy.contexts) > 5
    assert rig.host.stats().drafter_faults["shy"] == 0


@pytest.mark.parametrize("call", ["begin", "landed", "rest"])
def test_a_drafter_that_raises_in_any_call_is_given_up(call: str) -> None:
    drafter = Drafter("sick", lambda context, most: Guesses([1], [0.5]))

    def fails(*values: Any) -> Any:
        raise KeyError("gone")

    setattr(drafter, call, fails)
    rig = rig_with(drafter, Copies())
    rig.submit(*(job(stream, most=9) for stream in (1, 2)))
    rig.run()
    rig.check()
    assert rig.host.stats().drafter_faults == {"head": 0, "sick": 2, "copies": 0}


def test_a_guess_that_its_drafter_changes_afterwards_stays_as_it_was() -> None:
    tokens, chances = [5, 6], [0.5, 0.5]
    guessers = Guessers([Drafter("d", lambda context, most: (tokens, chances))], 97)
    guessing = guessers.begin(1, (1, 2), [3])
    ((guesses, _, _, own),) = guessers.propose(1, guessing, 4, ())
    tokens[0] = 9999
    chances[0] = 7.0
    assert (guesses, own) == ((5, 6), (0.5, 0.5))


@pytest.mark.parametrize(
    ("forced", "left"),
    [
        ((), (5, 6, 7)),
        ((5,), (6, 7)),
        ((5, 6), (7,)),
        ((5, 6, 7), None),
        ((6,), None),
        ((5, 7), None),
    ],
)
def test_the_heads_guesses_behind_what_is_forced_stand_if_they_foresaw_it(
    forced: tuple[int, ...], left: tuple[int, ...] | None
) -> None:
    guessers = Guessers([], 97)
    guessing = guessers.begin(1, (1, 2), [3])
    guessing.head = (5, 6, 7), (0.9, 0.6, 0.3)
    ((_, whole, _, _),) = guessers.propose(1, guessing, 4, ())
    found = guessers.propose(1, guessing, 4, forced)
    if left is None:
        assert found == []
        return
    ((guesses, chances, _, own),) = found
    past = len(forced)
    assert (guesses, own) == (left, (0.9, 0.6, 0.3)[past:])
    assert list(chances) == list(whole)[past:]


def test_guesses_behind_forced_tokens_are_counted_and_learned_from_as_what_they_were() -> None:
    guessers = Guessers([Drafter("d", lambda context, most: Guesses((7, 8), (0.9, 0.9)))], 97)
    guessing = guessers.begin(1, (1, 2), [3])
    proposals = guessers.propose(1, guessing, 4, (5, 6))
    # The first guess alone has a row; of the second it is seen that it was right.
    window = Window(stream=1, tokens=(3, 5, 6, 7), forced=2)
    guessing.due = lesson = proposals, (1, 1), window, (5, 6, 7, 8), 4
    guessers.learn([(guessing, lesson)])
    assert guessing.by_source() == {"d": (1, 1)}
    assert [known.value > UNKNOWN for known in guessers.sources[1][:3]] == [True, True, False]


def test_a_drafter_is_told_of_its_guesses_behind_forced_tokens() -> None:
    knows = Drafter("knows", silent)
    rig = rig_with(knows, window_rows=4)
    knows.ask = knowing(rig.jobs)
    rig.submit(job(1, most=60, forces=after_threes))
    rig.run()
    rig.check()
    assert rig.host.stats().forced > 0
    # They are right, and the token that comes after a window's last row is one of them too.
    assert min(knows.told) > 0


def test_two_sources_of_one_name_are_refused() -> None:
    with pytest.raises(AssertionError, match="a drafter's name is taken"):
        Guessers([Copies(), Copies()], 97)
    with pytest.raises(AssertionError, match="a drafter's name is taken"):
        Guessers([Drafter("head", lambda context, most: Guesses())], 97)


def test_a_context_reads_like_a_tuple_and_cannot_be_written() -> None:
    reply = [4, 5]
    context = Context((1, 2, 3), reply)
    reply.append(6)
    context.forced = (7, 8)
    whole = (1, 2, 3, 4, 5, 6, 7, 8)
    assert len(context) == 8
    assert tuple(context) == whole
    places = (None, *range(-10, 11))
    for start in places:
        for stop in places:
            for step in (None, 1, 2, -1):
                part = slice(start, stop, step)
                assert context[part] == list(whole[part]), part
    context.forced = ()
    for start in places:
        for stop in places:
            assert context[start:stop] == list(whole[:6][start:stop])
    assert [context[place] for place in range(-6, 6)] == [*whole[:6], *whole[:6]]
    with pytest.raises(IndexError):
        context[6]
    with pytest.raises(TypeError):
        context[0] = 1  # type: ignore[index]


def test_an_engines_drafts_without_chances_cost_drafts_and_no_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for chances in ((), (2.0, 2.0), (float("nan"), 0.5)):
        rig = rig_with(drafts=2)
        monkeypatch.setattr(rig.engine, "chances", lambda guesses, given=chances: given)
        rig.submit(job(1, most=9))
        rig.run()
        rig.check()
        assert rig.reader.ends[1].counts.drafted == 0
        assert rig.host.stats().drafter_faults["head"] > 0


@pytest.mark.parametrize("drafts", [(model.VOCAB,), (-1,), (5, 1 << 40), (-1, 5)])
def test_an_engines_drafts_that_are_no_tokens_get_no_row(
    monkeypatch: pytest.MonkeyPatch, drafts: tuple[int, ...]
) -> None:
    rig = rig_with(Copies(), drafts=2)
    monkeypatch.setattr(rig.engine, "guesses", lambda stream, want: drafts[:want])
    rig.submit(job(1, most=9), job(2, most=30))
    rig.run()
    rig.check()
    rows = {token for call in rig.calls for window in call.windows for token in window.tokens}
    assert rows <= set(range(model.VOCAB))
    assert rig.host.stats().drafter_faults["head"] > 0


def test_copies_repeat_what_a_stream_repeats() -> None:
    """The fake's greedy replies fall into loops: from then on most of a window is copied."""
    rig = rig_with(Copies(), window_rows=8, context=4096)
    made = job(1, rows=3, most=2000)
    rig.submit(made)
    rig.run()
    rig.check()
    drafted, accepted = counts_by_source(rig)["copies"]
    assert accepted > 1000
    assert accepted > 0.9 * drafted


# -- forced tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("forces", [after_threes, long_words])
@pytest.mark.parametrize(("window_rows", "round_rows"), [(1, 0), (2, 0), (3, 4), (8, 0), (8, 5)])
@pytest.mark.parametrize("drafts", [0, 3])
def test_forced_tokens_come_whatever_the_model_says_and_nothing_else_changes(
    forces: Any, window_rows: int, round_rows: int, drafts: int
) -> None:
    mixed = Drafter("mixed", silent)
    rig = rig_with(Copies(), mixed, window_rows=window_rows, round_rows=round_rows, drafts=drafts)
    mixed.ask = mistaken(knowing(rig.jobs), 5)
    for stream in range(1, 7):
        rig.submit(job(stream, most=40, logprobs=1, forces=forces))
    rig.run()
    rig.check()
    assert rig.host.stats().forced > 0 or window_rows == 1
    forced = [call for call in rig.calls if any(window.forced for window in call.windows)]
    assert bool(forced) == (window_rows > 1)


class Keen(Drafter):
    """Keeps what it is given, in every call: a context begins with the last one."""

    def __init__(self) -> None:
        super().__init__("keen", lambda context, most: Guesses((9,), (0.5,)))
        self.last: dict[tuple[int, ...], tuple[int, ...]] = {}

    def propose(self, context: Sequence[int], most: int) -> Any:
        self.rest(context)
        return super().propose(context, most)

    def rest(self, context: Sequence[int]) -> None:
        prompt, whole = tuple(context[:5]), tuple(context)
        last = self.last.get(prompt, ())
        assert whole[: len(last)] == last
        self.last[prompt] = whole


@pytest.mark.parametrize("forces", [after_threes, long_words])
@pytest.mark.parametrize("window_rows", [2, 3, 8])
def test_what_a_drafter_is_given_is_what_comes(forces: Any, window_rows: int) -> None:
    """While prompts go in too, and rounds hold a part of what is forced."""
    keen = Keen()
    rig = rig_with(keen, window_rows=window_rows, lanes=3)
    jobs = [job(stream, rows=5, most=6 * stream, forces=forces) for stream in range(1, 10)]
    rig.submit(*jobs)
    rig.run()
    rig.check()
    assert rig.host.stats().drafter_faults["keen"] == 0
    for made in jobs:
        given = keen.last.get(made.prompt, ())
        assert given == (*made.prompt, *solo(made))[: len(given)]


def test_forced_tokens_are_never_cut_for_guesses() -> None:
    costs = tuple((rows, 2.0**rows) for rows in range(1, 17))
    rig = rig_with(drafts=3, window_rows=8, round_costs=costs)
    rig.submit(job(1, most=30, forces=long_words), job(2, most=30))
    rig.run()
    rig.check()
    for call in rig.calls:
        for window in call.windows:
            assert window.forced == len(window.tokens) - 1
    assert any(window.forced == 7 for call in rig.calls for window in call.windows)


def test_a_reply_that_ends_inside_forced_tokens_counts_no_guess_behind_them_as_true() -> None:
    def forces(tokens: Sequence[int]) -> tuple[int, ...]:
        return (50, 52, 53) if len(tokens) == 2 else ()

    always = Drafter("always", lambda context, most: Guesses((9,) * most, (0.9,) * most))
    rig = rig_with(always, window_rows=8)
    rig.submit(job(1, most=20, forces=forces, end_tokens=frozenset({50})))
    rig.run()
    end = rig.reader.ends[1]
    assert (end.reason, end.counts.tokens) == ("end_token", 3)
    assert counts_by_source(rig)["always"] == (4, 0)


def test_forces_that_fail_end_their_stream_alone() -> None:
    def fails(tokens: Sequence[int]) -> tuple[int, ...]:
        if len(tokens) == 3:
            raise OSError("no")
        return ()

    rig = rig_with(drafts=2)
    rig.submit(job(1, most=9, forces=fails), job(2, most=9))
    rig.run()
    assert rig.reader.ends[1].reason == "fault"
    assert rig.reader.ends[1].message == "the forced tokens failed: OSError: no"
    assert rig.reader.ends[2].reason == "length"
    at_once = rig_with()
    at_once.submit(job(1, forces=lambda tokens: 1 / 0))  # type: ignore[arg-type,return-value]
    at_once.run()
    assert at_once.reader.ends[1].reason == "fault"
    assert at_once.engine.streams == {}


@pytest.mark.parametrize("token", [5000, -1, "a", True])
@pytest.mark.parametrize("window_rows", [1, 4])
def test_a_forced_token_that_is_none_of_the_vocabulary_ends_its_stream_alone(
    token: Any, window_rows: int
) -> None:
    rig = rig_with(window_rows=window_rows)
    rig.submit(job(1, most=9, forces=lambda tokens: (token,) if len(tokens) == 3 else ()))
    rig.submit(job(2, most=9))
    rig.run()
    assert rig.reader.ends[1].reason == "fault"
    assert f"a forced token is {token!r}" in rig.reader.ends[1].message
    assert rig.reader.ends[2].reason == "length"
    assert rig.host.stats().lost is None


# -- a reply's end at every place inside accepted drafts ----------------------------------------


@pytest.mark.parametrize("window_rows", [2, 3, 8])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_an_end_at_every_place_inside_accepted_guesses_is_the_end_of_the_reply(
    window_rows: int, logprobs: int | None
) -> None:
    whole = solo(job(3, most=24))
    for place in range(24):
        wishes: dict[str, dict[str, Any]] = {
            "stop": {"ends": lambda tokens, at=place: len(tokens) > at},
            "length": {"most": place + 1},
        }
        if whole[place] not in whole[:place]:
            wishes["end_token"] = {"end_tokens": frozenset({whole[place]})}
        for reason, wish in wishes.items():
            knows = Drafter("knows", silent)
            rig = rig_with(knows, window_rows=window_rows)
            made = job(3, **{"most": 24, "logprobs": logprobs, **wish})
            knows.ask = knowing({0: job(3, most=24)})
            rig.submit(made)
            rig.run()
            rig.check()
            end = rig.reader.ends[3]
            assert rig.reader.tokens[3] == whole[: place + 1]
            assert end.reason == reason or place == 23
            if logprobs is not None:
                assert rig.reader.logprobs[3] == logprobs_of(made, whole[: place + 1])
            if place > window_rows:
                assert end.counts.accepted > 0
