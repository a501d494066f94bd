"""Windows: whatever is guessed, the tokens and the state are those of one row a round."""

from __future__ import annotations

import random

import pytest

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling, Window
from tests.cpu.driving import (
    VOCAB,
    Asked,
    Told,
    alone,
    begin,
    fill_all,
    same_state,
    some_tokens,
    state_of,
    step,
    take,
)

MOST = 24


def asked_of(length: int, *, sampled: bool, most: int = MOST) -> Asked:
    sampling = Sampling(temperature=1.0, top_k=50, top_p=0.95) if sampled else Sampling()
    return Asked(
        prompt=tuple(some_tokens(length, seed=length)), most=most, sampling=sampling, seed=4
    )


def guesses_of(kind: str, coming: list[int], room: int, choice: random.Random) -> list[int]:
    """Up to `room` guesses at `coming`: all right, all wrong, right up to a place, or anything."""
    right = coming[:room]
    if kind == "right":
        return right
    if kind == "wrong":
        return [(token + 1) % VOCAB for token in right]
    if kind == "anything":
        return [choice.randrange(VOCAB) for _ in right]
    # One wrong guess in the middle, right ones behind it: these must not be taken.
    turned = choice.randrange(len(right)) if right else 0
    return [token if n != turned else (token + 1) % VOCAB for n, token in enumerate(right)]


KINDS = ("right", "wrong", "one wrong", "anything")


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_guesses_give_the_tokens_and_log_probabilities_of_no_guesses(
    engine: TorchEngine, kind: str, sampled: bool
) -> None:
    choice = random.Random(kind)
    for length in (1, 18, 62, 63, 130):
        asked = asked_of(length, sampled=sampled)
        wanted = alone(engine, asked)
        told = begin(engine, 1, asked)
        fill_all(engine, told)
        rounds = 0
        while not told.done:
            coming = wanted.tokens[len(told.tokens) :]
            room = min(choice.randint(1, 7), len(coming) - 1)
            step(engine, [told], {1: guesses_of(kind, coming, room, choice)})
            rounds += 1
        assert told.proof() == wanted.proof(), (length, kind)
        assert rounds < MOST - 1 if kind == "right" else rounds <= MOST - 1
        engine.close(1)


def one_row_until(engine: TorchEngine, asked: Asked, made: int, stream: int) -> Told:
    told = begin(engine, stream, asked)
    fill_all(engine, told)
    while len(told.tokens) < made:
        step(engine, [told])
    return told


@pytest.mark.parametrize("taken", range(8))
def test_rejected_rows_leave_no_byte_behind(engine: TorchEngine, taken: int) -> None:
    """A window of 8 of which `taken` guesses are right, at each place in the open pool and page."""
    for length in (3, 17, 18, 20, 57, 62, 63, 64):
        asked = asked_of(length, sampled=True, most=12)
        wanted = alone(engine, asked)
        told = one_row_until(engine, asked, 2, stream=1)
        right = wanted.tokens[2 : 2 + taken]
        guesses = [*right, *((token + 1) % VOCAB for token in wanted.tokens[2 + taken : 9])]
        step(engine, [told], {1: guesses})
        assert len(told.tokens) == 3 + taken
        pure = one_row_until(engine, asked, 3 + taken, stream=2)
        assert same_state(state_of(engine, 1), state_of(engine, 2)), (length, taken)
        while not told.done:
            step(engine, [told, pure])
        assert told.proof() == pure.proof() == wanted.proof()
        engine.close(1)
        engine.close(2)


def test_windows_of_many_streams_roll_back_each_to_its_own_row(engine: TorchEngine) -> None:
    choice = random.Random(3)
    orders = [
        asked_of(length, sampled=length % 2 == 0) for length in (1, 2, 30, 62, 64, 90, 127, 200)
    ]
    wanted = [alone(engine, asked) for asked in orders]
    tolds = [begin(engine, stream, asked) for stream, asked in enumerate(orders)]
    for told in tolds:
        fill_all(engine, told)
    while any(not told.done for told in tolds):
        live = [told for told in tolds if not told.done]
        choice.shuffle(live)
        guesses = {}
        for told in live:
            coming = wanted[told.stream].tokens[len(told.tokens) :]
            room = min(choice.randint(0, 7), len(coming) - 1)
            guesses[told.stream] = guesses_of(choice.choice(KINDS), coming, room, choice)
        step(engine, live, guesses)
    assert [told.proof() for told in tolds] == [told.proof() for told in wanted]


def test_forced_rows_are_taken_unseen_and_equal_the_same_rows_one_by_one(
    engine: TorchEngine,
) -> None:
    asked = asked_of(40, sampled=True)
    forced = some_tokens(5, seed=77)
    first = one_row_until(engine, asked, 1, stream=1)
    window = Window(stream=1, tokens=(first.tokens[-1], *forced), forced=5)
    take(first, engine.round([window]).land()[0])
    assert first.tokens[1:6] == forced
    assert len(first.tokens) == 7
    second = one_row_until(engine, asked, 1, stream=2)
    for token in (second.tokens[-1], *forced):
        landed = engine.round([Window(stream=2, tokens=(token,))]).land()[0]
    assert landed.tokens == (first.tokens[6],)
    assert landed.logprobs == (first.logprobs[6],)
    assert same_state(state_of(engine, 1), state_of(engine, 2))


def test_forced_rows_before_guesses_stay_when_the_guesses_fall(engine: TorchEngine) -> None:
    asked = asked_of(62, sampled=False)
    wanted = alone(engine, asked)
    told = one_row_until(engine, asked, 1, stream=1)
    right, wrong = wanted.tokens[1:4], [(token + 1) % VOCAB for token in wanted.tokens[4:6]]
    window = Window(stream=1, tokens=(told.tokens[-1], *right, *wrong), forced=2)
    take(told, engine.round([window]).land()[0])
    assert told.tokens == wanted.tokens[:5]
    while not told.done:
        step(engine, [told])
    assert told.proof() == wanted.proof()


def test_a_window_past_the_claimed_rows_is_no_silent_write(engine: TorchEngine) -> None:
    """Rows beyond prompt and reply have no page of their own: they would fall on the spare one."""
    told = one_row_until(engine, asked_of(60, sampled=False, most=4), 1, stream=1)
    with pytest.raises(AssertionError):
        step(engine, [told], {1: (1, 2, 3, 4)})
    step(engine, [told], {1: (1, 2, 3)})
    assert told.fault is None
