"""Through the engine's door: no reply can tell who shared the machine with it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorfold.core.engine import open_engine
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling
from tensorfold.core.lane_host.stream import Job
from tests.cpu.driving import (
    GRID,
    Asked,
    Told,
    alone,
    begin,
    fill,
    fill_all,
    opened,
    some_tokens,
    step,
)
from tests.cpu.ranks.scenes import replies

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.8, top_k=7),
    Sampling(temperature=1.3, top_p=0.7),
    Sampling(temperature=0.9, min_p=0.05),
    Sampling(temperature=1.1, top_k=40, top_p=0.9, min_p=0.01),
)


def asked_of(number: int, length: int, most: int = 6) -> Asked:
    return Asked(
        prompt=tuple(some_tokens(length, seed=number)),
        most=most,
        sampling=SAMPLINGS[number % len(SAMPLINGS)],
        seed=number * 7919 - 3,
        logprobs=3,
    )


def together(engine: TorchEngine, orders: Sequence[Asked], choice: random.Random) -> list[Told]:
    """All replies at once: arrivals, packs, pieces, rounds and their order are left to chance."""
    waiting = list(enumerate(orders))
    choice.shuffle(waiting)
    filling: list[tuple[Told, int]] = []
    live: list[Told] = []
    ended: dict[int, Told] = {}
    while waiting or filling or live:
        room = len(engine.streams) < engine.info.lanes
        if waiting and room and choice.random() < 0.6:
            number, asked = waiting.pop()
            filling.append((begin(engine, number, asked), 0))
        if filling and choice.random() < 0.7:
            fill_some(engine, filling, live, choice)
        ready = [told for told in live if not told.done]
        if ready:
            step(engine, choice.sample(ready, choice.randint(1, len(ready))))
        for told in [told for told in live if told.done]:
            live.remove(told)
            ended[told.stream] = told
            engine.close(told.stream)
    return [ended[number] for number in range(len(orders))]


def fill_some(
    engine: TorchEngine, filling: list[tuple[Told, int]], live: list[Told], choice: random.Random
) -> None:
    """One forward over some of the passes, each cut on the grid or run to its end."""
    pieces = []
    room = engine.info.pack_rows
    for told, start in choice.sample(filling, choice.randint(1, min(3, len(filling)))):
        length = len(told.asked.prompt)
        ends = [end for end in (*range(start + GRID, length, GRID), length) if end - start <= room]
        if ends:
            end = choice.choice(ends)
            pieces.append((told, start, end))
            room -= end - start
    if not pieces:
        return
    fill(engine, *pieces)
    for told, start, end in pieces:
        filling.remove((told, start))
        if end < len(told.asked.prompt):
            filling.append((told, end))
        else:
            live.append(told)


@pytest.fixture(scope="module")
def orders() -> list[Asked]:
    lengths = (1, 2, 19, 63, 64, 65, 100, 128, 129, 200, 7, 31, 250)
    return [asked_of(number, length) for number, length in enumerate(lengths)]


@pytest.fixture(scope="module")
def proofs(shared_engine: TorchEngine, orders: list[Asked]) -> list[tuple[str, object]]:
    return [alone(shared_engine, asked).proof() for asked in orders]


@pytest.mark.parametrize("seed", range(3))
def test_replies_among_others_equal_the_same_replies_alone(
    engine: TorchEngine, orders: list[Asked], proofs: list[tuple[str, object]], seed: int
) -> None:
    told = together(engine, orders, random.Random(seed))
    assert [one.proof() for one in told] == proofs


def test_one_workload_three_times_gives_the_same_bits(
    engine: TorchEngine, orders: list[Asked], proofs: list[tuple[str, object]]
) -> None:
    for _ in range(3):
        told = together(engine, orders[:9], random.Random(11))
        assert [one.proof() for one in told] == proofs[:9]


def test_a_reply_repeats_itself_alone(
    engine: TorchEngine, orders: list[Asked], proofs: list[tuple[str, object]]
) -> None:
    assert [alone(engine, asked).proof() for asked in orders[:6]] == proofs[:6]


def test_the_first_replies_after_a_start_are_those_of_every_later_one(
    orders: list[Asked], proofs: list[tuple[str, object]]
) -> None:
    for first in (1, 6):
        engine = opened()
        chosen = [first, 3, first]
        assert [alone(engine, orders[n]).proof() for n in chosen] == [proofs[n] for n in chosen]


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lengths=st.lists(st.integers(1, 140), min_size=1, max_size=5),
    most=st.integers(1, 4),
    choice=st.randoms(use_true_random=False),
)
def test_any_arrivals_orders_and_lengths_give_the_replies_alone(
    engine: TorchEngine, lengths: list[int], most: int, choice: random.Random
) -> None:
    orders = [asked_of(100 + n, length, most) for n, length in enumerate(lengths)]
    wanted = [alone(engine, asked).proof() for asked in orders]
    plain = random.Random(choice.getrandbits(32))
    assert [one.proof() for one in together(engine, orders, plain)] == wanted


def test_eight_times_the_same_seeded_request_at_once_is_one_reply(engine: TorchEngine) -> None:
    asked = Asked(
        prompt=tuple(some_tokens(21)), sampling=Sampling(temperature=1.0), seed=-5, most=9
    )
    wanted = alone(engine, asked).proof()
    tolds = [begin(engine, stream, asked) for stream in range(8)]
    fill(engine, *((told, 0, 21) for told in tolds))
    while not tolds[0].done:
        step(engine, tolds)
    assert {told.proof() for told in tolds} == {wanted}


def test_seeds_stay_with_their_stream_whatever_the_lane(engine: TorchEngine) -> None:
    prompt = tuple(some_tokens(5))
    seeds = [30, 30, 31, 30, 0, 30, -1, 30]
    orders = [
        Asked(prompt=prompt, sampling=Sampling(temperature=2.0), seed=seed, most=12)
        for seed in seeds
    ]
    tolds = [begin(engine, stream, asked) for stream, asked in enumerate(orders)]
    for told in tolds:
        fill_all(engine, told)
    while not tolds[0].done:
        step(engine, tolds)
    assert [told.proof() for told in tolds] == [alone_later(engine, told) for told in tolds]
    assert len({told.proof()[0] for told in tolds}) == len(set(seeds))


def alone_later(engine: TorchEngine, told: Told) -> tuple[str, object]:
    if told.stream in engine.streams:
        engine.close(told.stream)
    return alone(engine, told.asked).proof()


def test_others_that_close_in_the_middle_change_nothing(
    engine: TorchEngine, orders: list[Asked], proofs: list[tuple[str, object]]
) -> None:
    kept = begin(engine, 0, orders[9])
    gone = begin(engine, 1, orders[7])
    fill(engine, (gone, 0, 64))
    fill(engine, (kept, 0, 128))
    engine.close(1)  # while its prompt is half in
    other = begin(engine, 2, orders[5])
    fill(engine, (kept, 128, 200), (other, 0, 65))
    step(engine, [other, kept])
    engine.close(2)  # while it is live
    begin(engine, 3, orders[2])
    step(engine, [kept])
    engine.close(3)  # before its first row
    late = begin(engine, 4, orders[4])
    fill_all(engine, late)
    while not kept.done:
        step(engine, [late, kept] if not late.done else [kept])
    assert kept.proof() == proofs[9]


def test_the_log_probabilities_of_a_prompt_are_the_same_in_pieces_and_company(
    engine: TorchEngine,
) -> None:
    from tensorfold.core.engine_api import Opening, Piece

    prompt = tuple(some_tokens(150))
    found = []
    for cuts, company in (([0, 150], False), ([0, 64, 128, 150], True)):
        engine.open(Opening(stream=1, prompt=prompt, most=1))
        other = begin(engine, 2, Asked(prompt=tuple(some_tokens(100, seed=9))))
        rows = []
        for start, end in itertools.pairwise(cuts):
            pieces = [Piece(stream=1, start=start, end=end, logprobs=2)]
            if company and start == 0:
                pieces.insert(0, Piece(stream=other.stream, start=0, end=64))
            rows += engine.fill(pieces).land()[-1].rows
        found.append(rows)
        engine.close(1)
        engine.close(2)
    assert found[0] == found[1]
    assert [one.token for one in found[0]] == list(prompt[1:])


@pytest.mark.parametrize("drawn", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "warm"])
def test_each_stream_of_a_round_has_the_log_probabilities_that_it_asked_for(
    engine: TorchEngine, drawn: Sampling
) -> None:
    wanted = (None, 0, 3, None, 1)
    tolds = []
    for stream, alternatives in enumerate(wanted):
        prompt = tuple(some_tokens(5 + stream, seed=stream))
        asked = Asked(prompt=prompt, most=4, sampling=drawn, seed=stream, logprobs=alternatives)
        tolds.append(begin(engine, stream, asked))
        fill_all(engine, tolds[-1])
    while not all(told.done for told in tolds):
        step(engine, tolds)
    for told, alternatives in zip(tolds, wanted, strict=True):
        told_of = [] if alternatives is None else told.tokens
        assert [one.token for one in told.logprobs] == told_of
        assert {len(one.top) for one in told.logprobs} <= {alternatives}


def test_forty_four_at_once_reply_as_alone_and_again_as_the_time_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing is known of costs then: every guess gets its row.
    monkeypatch.setattr(open_engine, "time_rounds", lambda *given: None)
    engine = opened(lanes=48, context=64, chunk_rows=64, drafts=2)
    jobs = [
        Job(
            stream=stream,
            prompt=tuple(some_tokens(3 + stream * 5 % 40, seed=stream % 11)),
            most=4,
            sampling=SAMPLINGS[stream % len(SAMPLINGS)],
            seed=stream % 3,
            logprobs=2,
        )
        for stream in range(44)
    ]
    first, again = (replies(engine, jobs) for _ in range(2))
    assert again == first
    for job in jobs[::8]:
        assert replies(engine, [replace(job, draft=False)]) == {job.stream: first[job.stream]}
