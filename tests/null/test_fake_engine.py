"""The fake engine: its tokens by definition, its rollback, and the rules it holds its caller to."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tensorfold.backends.fake import model
from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import Call, FakeOptions, Trouble, VirtualClock
from tensorfold.core.engine_api import Opening, Piece, Sampling, Saved, Window
from tensorfold.core.errors import EngineFault, EngineLost, NoRoom, Refused

PROMPT = tuple((5 * row + 2) % 97 for row in range(40))
SAMPLED = Sampling(temperature=1.0)


def opening(stream: int = 1, **fields: Any) -> Opening:
    fields.setdefault("prompt", PROMPT)
    fields.setdefault("most", 40)
    return Opening(stream=stream, **fields)


def engine(**options: Any) -> FakeEngine:
    return FakeEngine(FakeOptions(**{"drafts": 7, **options}))


def went_in(made: FakeEngine, asked: Opening, want: int = 0) -> list[int]:
    """Open a stream and run its prompt; its first token, then its drafts."""
    made.open(asked)
    piece = Piece(stream=asked.stream, start=0, end=len(asked.prompt), want=want)
    (filled,) = made.fill([piece]).land()
    assert filled.token is not None
    return [filled.token, *filled.drafts]


def test_the_next_token_is_the_published_formula() -> None:
    (token,) = went_in(engine(), opening())
    assert token == (7 * sum(PROMPT) + 3 * len(PROMPT)) % 97


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
@pytest.mark.parametrize("want", [0, 1, 3, 7])
def test_drafted_windows_give_the_undrafted_reply(sampling: Sampling, want: int) -> None:
    made, asked = engine(), opening(sampling=sampling, seed=3, logprobs=2)
    token, *guesses = went_in(made, asked, want)
    tokens, logprobs = [token], []
    while len(tokens) + want + 1 < asked.most:
        window = Window(stream=1, tokens=(tokens[-1], *guesses), want=want)
        (landed,) = made.round([window]).land()
        tokens += landed.tokens
        logprobs += landed.logprobs
        guesses = list(landed.drafts)
    assert tokens == model.reply(asked, len(tokens))
    history = list(PROMPT)
    for token, value in zip(tokens[1:], logprobs, strict=True):
        history.append(tokens[len(history) - len(PROMPT)])
        assert value == model.logprob(sum(history), len(history), token, 2)


def test_rejected_guesses_leave_no_trace() -> None:
    made, asked = engine(), opening()
    (token,) = went_in(made, asked)
    before = (list(made.streams[1].cache), made.streams[1].total)
    right = model.reply(asked, 2)[1]
    (landed,) = made.round([Window(stream=1, tokens=(token, (right + 1) % 97, 5, 6))]).land()
    assert landed.tokens == (right,)
    assert made.streams[1].cache == [*before[0], token]
    assert made.streams[1].total == before[1] + token


def test_drafts_are_wrong_about_one_time_in_five() -> None:
    asked = opening(most=5000)
    reply = model.reply(asked, 3000)
    history, wrong = list(PROMPT), 0
    total = sum(history)
    for token in reply:
        guesses = model.drafts(total, len(history), asked, 1, 5)
        wrong += guesses != (token,)
        history.append(token)
        total += token
    assert 0.17 < wrong / len(reply) < 0.23
    assert model.drafts(total, len(history), asked, 4, 0) == tuple(
        model.reply(replace(asked, prompt=tuple(history)), 4)
    )


def test_forced_tokens_are_taken_unseen_and_masks_bind_draws() -> None:
    made, asked = engine(), opening()
    (token,) = went_in(made, asked)
    (landed,) = made.round([Window(stream=1, tokens=(token, 11, 12), forced=2)]).land()
    assert landed.tokens[:2] == (11, 12)
    only_five = bytes([1 << 5]) + bytes(12)
    window = Window(stream=1, tokens=(landed.tokens[-1],), masks=(only_five,))
    assert made.round([window]).land()[0].tokens == (5,)


def test_logprobs_are_a_distribution_over_the_vocabulary() -> None:
    every = model.logprob(10, 3, 5, 97)
    assert abs(sum(2.718281828459045**value for _, value in every.top) - 1) < 1e-9
    assert every.top[0][0] == model.likeliest(10, 3)
    assert (5, every.logprob) in every.top


def test_prompt_logprobs_cover_every_row_that_has_a_next_token() -> None:
    whole = engine()
    whole.open(opening())
    (filled,) = whole.fill([Piece(stream=1, start=0, end=40, logprobs=0)]).land()
    cut = engine()
    cut.open(opening())
    rows = []
    for start, end in ((0, 16), (16, 32), (32, 40)):
        (piece,) = cut.fill([Piece(stream=1, start=start, end=end, logprobs=0)]).land()
        rows += piece.rows
    assert tuple(rows) == filled.rows
    assert [row.token for row in rows] == list(PROMPT[1:])


def test_a_kept_state_resumes_to_the_same_reply_and_outlives_its_stream() -> None:
    made = engine()
    made.open(opening(marks=(16, 32)))
    (first,) = made.fill([Piece(stream=1, start=0, end=16)]).land()
    (second,) = made.fill([Piece(stream=1, start=16, end=32)]).land()
    made.close(1)
    assert first.saved is not None
    assert second.saved is not None
    assert made.open(opening(2, resume=second.saved)).cached == 32
    (filled,) = made.fill([Piece(stream=2, start=32, end=40)]).land()
    assert [filled.token] == model.reply(opening(), 1)
    made.drop(first.saved)
    assert list(made.kept) == [second.saved.id]


def test_a_state_that_cannot_be_restored_is_reported_and_runs_from_row_0() -> None:
    made = engine()
    gone = made.open(opening(resume=Saved(id=9, rows=16, bytes=16)))
    assert gone.cached == 0
    assert gone.lost is not None
    made = engine()
    made.open(opening(marks=(16,)))
    (filled,) = made.fill([Piece(stream=1, start=0, end=16)]).land()
    other = made.open(opening(2, prompt=(1,) * 40, resume=filled.saved))
    assert (other.cached, other.lost is None) == (0, False)
    exact = made.open(opening(3, prompt=PROMPT[:16], resume=filled.saved))
    assert (exact.cached, exact.lost is None) == (0, False)


def test_memory_is_no_room_now_and_refused_for_ever() -> None:
    made = engine(room_tokens=100)
    made.open(opening())
    with pytest.raises(NoRoom):
        made.open(opening(2))
    with pytest.raises(Refused):
        made.open(opening(3, most=61))
    assert (made.memory().used, made.memory().free) == (80, 20)
    made.close(1)
    made.open(opening(2))
    made = engine(room_lanes=1)
    made.open(opening())
    with pytest.raises(NoRoom):
        made.open(opening(2))
    assert made.slips == []


Act = Callable[[FakeEngine], object]

SLIPS: dict[str, tuple[dict[str, Any], Act]] = {
    "open twice": ({}, lambda made: made.open(opening())),
    "open past the lanes": ({"lanes": 1}, lambda made: made.open(opening(2))),
    "open past the passes": ({"passes": 1}, lambda made: made.open(opening(2))),
    "open past the context": ({}, lambda made: made.open(opening(2, most=5000))),
    "an empty prompt": ({}, lambda made: made.open(opening(2, prompt=()))),
    "a token that is no id": ({}, lambda made: made.open(opening(2, prompt=(97,)))),
    "a mark off the grid": ({}, lambda made: made.open(opening(2, marks=(5,)))),
    "a piece off the grid": ({}, lambda made: made.fill([Piece(stream=1, start=0, end=17)])),
    "a piece that skips rows": ({}, lambda made: made.fill([Piece(stream=1, start=16, end=32)])),
    "a piece past the prompt": ({}, lambda made: made.fill([Piece(stream=1, start=0, end=48)])),
    "a piece over a chunk": (
        {"chunk_rows": 16},
        lambda made: made.fill([Piece(stream=1, start=0, end=32)]),
    ),
    "a piece of a closed stream": ({}, lambda made: made.fill([Piece(stream=5, start=0, end=16)])),
    "no piece": ({}, lambda made: made.fill([])),
    "a pack over its rows": (
        {"pack_rows": 50},
        lambda made: (
            made.open(opening(2)),
            made.fill([Piece(stream=1, start=0, end=40), Piece(stream=2, start=0, end=40)]),
        ),
    ),
    "a window before the prompt": ({}, lambda made: made.round([Window(stream=1, tokens=(1,))])),
    "two flights": (
        {},
        lambda made: (
            made.fill([Piece(stream=1, start=0, end=16)]),
            made.fill([Piece(stream=1, start=16, end=32)]),
        ),
    ),
    "a close in flight": (
        {},
        lambda made: (made.fill([Piece(stream=1, start=0, end=16)]), made.close(1)),
    ),
    "a close of a stranger": ({}, lambda made: made.close(7)),
    "a drop of what is not kept": ({}, lambda made: made.drop(Saved(id=1, rows=1, bytes=1))),
    "too many drafts wanted": (
        {"drafts": 2},
        lambda made: made.fill([Piece(stream=1, start=0, end=40, want=3)]),
    ),
    "a call after shutdown": ({}, lambda made: (made.shutdown(), made.close(1))),
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_broken_rule_of_the_interface_is_caught(name: str) -> None:
    options, act = SLIPS[name]
    made = engine(**options)
    made.open(opening())
    with pytest.raises(AssertionError):
        act(made)
    assert len(made.slips) == 1


@pytest.mark.parametrize(
    "window",
    [
        Window(stream=1, tokens=(96,)),
        Window(stream=1, tokens=()),
        Window(stream=1, tokens=(44,) * 9),
        Window(stream=1, tokens=(44, 1), forced=2),
        Window(stream=1, tokens=(44, 1), masks=(None,)),
        Window(stream=1, tokens=(44,), want=8),
    ],
)
def test_a_window_that_does_not_fit_its_stream_is_caught(window: Window) -> None:
    made = engine()
    assert went_in(made, opening()) == [44]
    with pytest.raises(AssertionError):
        made.round([window])


@pytest.mark.parametrize("slip", [{"tokens": (1, 2)}, {"want": 1}, {"masks": (None,)}])
def test_a_window_asks_nothing_where_the_one_before_said_that_its_stream_goes_on(
    slip: dict[str, Any],
) -> None:
    made = engine()
    (token,) = went_in(made, opening())
    (landed,) = made.round([Window(stream=1, tokens=(token,), goes_on=True)]).land()
    asked = Window(stream=1, tokens=landed.tokens)
    with pytest.raises(AssertionError, match="was not to ask"):
        made.round([replace(asked, **{**slip, "tokens": landed.tokens + slip.get("tokens", ())})])
    made.round([asked]).land()
    made.round([replace(asked, tokens=(made.streams[1].pending,), want=1)]).land()


def test_a_window_never_runs_past_its_reply() -> None:
    made = engine()
    assert went_in(made, opening(most=3)) == [44]
    with pytest.raises(AssertionError):
        made.round([Window(stream=1, tokens=(44, 1, 2))])


def test_troubles_come_where_they_are_told_to_and_do_nothing_first() -> None:
    made = engine(
        troubles=(
            Trouble(kind="fill.land", call=0, error=EngineFault("once")),
            Trouble(kind="fill.land", stream=1, call=1, fault="hurt"),
            Trouble(kind="close", error=EngineLost("gone")),
        )
    )
    made.open(opening())
    piece = Piece(stream=1, start=0, end=40)
    flight = made.fill([piece])
    with pytest.raises(EngineFault):
        flight.land()
    (filled,) = made.fill([piece]).land()
    assert (filled.fault, filled.token) == ("hurt", None)
    with pytest.raises(EngineLost):
        made.close(1)
    with pytest.raises(AssertionError):
        made.close(1)


def test_a_landing_takes_its_time_and_the_hook_sees_every_call() -> None:
    clock, seen = VirtualClock(), []

    def cost(call: Call) -> float:
        return 2.0 if call.kind == "fill.land" else 0.0

    made = engine(hook=seen.append, cost=cost, wait=clock.wait)
    went_in(made, opening())
    made.close(1)
    assert clock() == 2.0
    assert [call.kind for call in seen] == ["open", "fill", "fill.land", "close"]
