"""Kept states: resumed equals fresh, what cannot be restored is told, and pages are counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tensorfold.core.engine.state import allocate
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Sampling, Saved
from tensorfold.core.errors import NoRoom, Refused
from tensorfold.core.state_spec import Fixed, PerToken, StateSpec
from tests.cpu.driving import (
    Asked,
    Told,
    alone,
    begin,
    fill,
    fill_all,
    opened,
    same_state,
    some_tokens,
    state_of,
    step,
)

MARKS = (64, 128, 192)


def asked_of(length: int, *, sampled: bool = True) -> Asked:
    sampling = Sampling(temperature=1.0, top_p=0.9) if sampled else Sampling()
    return Asked(prompt=tuple(some_tokens(length, seed=2)), most=6, sampling=sampling, seed=12)


def marked(engine: TorchEngine, stream: int, asked: Asked, marks: tuple[int, ...] = MARKS) -> Told:
    told = begin(engine, stream, asked, marks=marks)
    fill_all(engine, told, marks)
    return told


def finish(engine: TorchEngine, told: Told) -> Told:
    if not told.tokens:
        fill_all(engine, told)
    while not told.done:
        step(engine, [told])
    return told


@pytest.fixture
def narrow() -> TorchEngine:
    """Two lanes of three pages, and room for no more."""
    return opened(lanes=2, context=192, chunk_rows=192)


@pytest.mark.parametrize("first_closed", [False, True])
@pytest.mark.parametrize("length", [193, 200, 256, 257])
def test_a_prompt_resumed_at_every_mark_equals_a_fresh_one(
    engine: TorchEngine, length: int, first_closed: bool
) -> None:
    asked = asked_of(length)
    wanted = alone(engine, asked).proof()
    fresh = begin(engine, 5, asked)
    fill_all(engine, fresh)
    after_prompt = state_of(engine, 5)
    first = marked(engine, 1, asked)
    assert [saved.rows for saved in first.saved] == list(MARKS)
    if first_closed:
        engine.close(1)
    for saved in first.saved:
        told = begin(engine, 2, asked, resume=saved)
        assert (told.cached, told.lost) == (saved.rows, None)
        fill_all(engine, told)
        assert same_state(state_of(engine, 2), after_prompt), saved.rows
        assert finish(engine, told).proof() == wanted, saved.rows
        assert same_state(state_of(engine, 2), state_of(engine, finish(engine, fresh).stream))
        engine.close(2)


def test_one_state_serves_another_prompt_of_the_same_beginning(engine: TorchEngine) -> None:
    base = asked_of(200)
    first = marked(engine, 1, base)
    for saved in first.saved:
        other = replace(base, prompt=base.prompt[: saved.rows] + tuple(some_tokens(37, seed=8)))
        told = begin(engine, 2, other, resume=saved)
        assert told.cached == saved.rows
        proof = finish(engine, told).proof()
        engine.close(2)
        assert proof == alone(engine, other).proof()


def test_log_probabilities_of_a_resumed_prompt_are_those_of_its_rows_in_a_fresh_one(
    engine: TorchEngine,
) -> None:
    prompt = tuple(some_tokens(200, seed=6))
    marks, cuts = (64, 128), (0, 64, 128, 200)
    engine.open(Opening(stream=1, prompt=prompt, most=1, marks=marks))
    rows, kept = [], []
    for start, end in pairwise(cuts):
        piece = Piece(stream=1, start=start, end=end, logprobs=2)
        (filled,) = engine.fill([piece]).land()
        rows += filled.rows
        kept += [filled.saved] if filled.saved is not None else []
    assert [one.token for one in rows] == list(prompt[1:])
    for saved in (*kept, *kept):
        opened = engine.open(Opening(stream=2, prompt=prompt, most=1, resume=saved))
        assert opened.cached == saved.rows
        (filled,) = engine.fill([Piece(stream=2, start=saved.rows, end=200, logprobs=2)]).land()
        assert list(filled.rows) == rows[saved.rows :]
        engine.close(2)


def test_a_chain_of_resumed_states_equals_a_fresh_prompt(engine: TorchEngine) -> None:
    """Each mark is kept by a stream that itself resumed at the mark before it."""
    asked = asked_of(200)
    wanted = alone(engine, asked).proof()
    saved: Saved | None = None
    for mark in MARKS:
        told = begin(engine, mark, asked, marks=(mark,), resume=saved)
        fill(engine, (told, told.cached, mark))
        engine.close(mark)
        if saved is not None:
            engine.drop(saved)
        (saved,) = told.saved
    told = begin(engine, 1, asked, resume=saved)
    assert told.cached == 192
    assert finish(engine, told).proof() == wanted


def test_streams_that_share_pages_do_not_touch_each_other(engine: TorchEngine) -> None:
    """The stream that was kept, two that resume from it, and one more after all of them ran on."""
    asked = asked_of(140)
    orders = [
        replace(asked, prompt=asked.prompt[:128] + tuple(some_tokens(n, seed=n)), most=30)
        for n in (1, 5, 60)
    ]
    wanted = [alone(engine, one).proof() for one in orders]
    first = begin(engine, 9, replace(asked, most=30), marks=(128,))
    wanted_first = alone(engine, first.asked).proof()
    fill_all(engine, first, (128,))
    (saved,) = first.saved
    step(engine, [first], {9: some_tokens(7, seed=3)})
    tolds = [begin(engine, n, one, resume=saved) for n, one in enumerate(orders[:2])]
    for told in tolds:
        fill_all(engine, told)
    while live := [told for told in (tolds[1], first, tolds[0]) if not told.done]:
        room = min(29 - len(told.tokens) for told in live)
        step(engine, live, {live[0].stream: some_tokens(min(5, room), seed=room)})
    last = finish(engine, begin(engine, 7, orders[2], resume=saved))
    assert [told.proof() for told in (*tolds, last)] == wanted
    assert first.proof() == wanted_first


def test_resumed_prompts_in_a_pack_equal_fresh_ones(engine: TorchEngine) -> None:
    asked = asked_of(257)
    first = marked(engine, 9, asked)
    engine.close(9)
    other = Asked(prompt=tuple(some_tokens(65, seed=31)), most=6, sampling=asked.sampling, seed=5)
    tolds = [
        begin(engine, 0, replace(asked, prompt=asked.prompt[:200]), resume=first.saved[1]),
        begin(engine, 1, other),
        begin(engine, 2, asked, resume=first.saved[2]),
        begin(engine, 3, replace(asked, prompt=asked.prompt[:70]), resume=first.saved[0]),
    ]
    fill(engine, *((told, told.cached, len(told.asked.prompt)) for told in tolds))
    while not tolds[0].done:
        step(engine, tolds)
    for told in tolds:
        engine.close(told.stream)
    assert [told.proof() for told in tolds] == [alone(engine, told.asked).proof() for told in tolds]


@pytest.mark.parametrize("place", [0, 63, 64, 127])
def test_a_state_of_another_beginning_is_lost_and_the_prompt_runs_whole(
    engine: TorchEngine, place: int
) -> None:
    asked = asked_of(150)
    first = marked(engine, 1, asked, (128,))
    changed = list(asked.prompt)
    changed[place] = changed[place] % 100 + 1 if changed[place] != changed[place] % 100 + 1 else 140
    other = replace(asked, prompt=tuple(changed))
    told = begin(engine, 2, other, resume=first.saved[0])
    assert told.cached == 0
    assert told.lost is not None
    assert str(first.saved[0].id) in told.lost
    proof = finish(engine, told).proof()
    engine.close(2)
    assert proof == alone(engine, other).proof()


@pytest.mark.parametrize("length", [100, 127, 128])
def test_a_state_of_as_many_rows_as_the_prompt_is_not_restored(
    engine: TorchEngine, length: int
) -> None:
    """At least the last row runs, or nothing could be drawn."""
    asked = asked_of(150)
    first = marked(engine, 1, asked, (128,))
    told = begin(engine, 2, replace(asked, prompt=asked.prompt[:length]), resume=first.saved[0])
    assert told.cached == 0
    assert told.lost is not None
    assert finish(engine, told).fault is None


def test_a_dropped_state_is_lost_and_its_number_never_returns(engine: TorchEngine) -> None:
    asked = asked_of(150)
    wanted = alone(engine, asked).proof()
    (saved,) = marked(engine, 1, asked, (128,)).saved
    engine.drop(saved)
    (again,) = marked(engine, 3, asked, (128,)).saved
    assert again.id != saved.id
    told = begin(engine, 2, asked, resume=saved)
    assert (told.cached, told.lost) == (0, f"kept state {saved.id} is not here")
    assert finish(engine, told).proof() == wanted


def test_memory_returns_to_nothing_in_whatever_order_things_are_freed(engine: TorchEngine) -> None:
    asked = asked_of(200)
    spec = engine.storage.spec
    for order in ("drop", "close"):
        first = marked(engine, 1, asked)
        pages = -(-(200 + asked.most) // 64)
        lane, page = spec.bytes_per_lane(), spec.bytes_per_page()
        assert engine.memory().used == pages * page + 4 * lane
        told = begin(engine, 2, asked, resume=first.saved[1])
        assert engine.memory().used == (pages + pages - 2) * page + 5 * lane
        if order == "drop":
            for saved in first.saved:
                engine.drop(saved)
            assert engine.memory().used == (pages + pages - 2) * page + 2 * lane
            engine.close(1)
            engine.close(told.stream)
        else:
            engine.close(1)
            engine.close(told.stream)
            # What the states share: the first three pages, once.
            assert engine.memory().used == 3 * page + 3 * lane
            for saved in first.saved:
                engine.drop(saved)
        assert engine.memory().used == 0
        assert sorted(engine.storage.free_pages) == list(range(engine.storage.pages))
        assert sorted(engine.storage.free_lanes) == list(range(engine.info.lanes))
        assert not any(engine.storage.holders)


def test_no_room_without_a_lane_leaves_everything_as_it_was(narrow: TorchEngine) -> None:
    asked = asked_of(30)
    wanted = alone(narrow, asked).proof()
    tolds = [begin(narrow, stream, asked) for stream in (1, 2)]
    used = narrow.memory()
    with pytest.raises(NoRoom):
        begin(narrow, 3, asked)
    assert narrow.memory() == used
    assert 3 not in narrow.streams
    narrow.close(1)
    third = begin(narrow, 3, asked)
    assert finish(narrow, third).proof() == finish(narrow, tolds[1]).proof() == wanted


def test_no_room_without_pages_works_again_once_the_kept_states_are_dropped(
    narrow: TorchEngine,
) -> None:
    asked = asked_of(180)
    first = marked(narrow, 1, asked, (64, 128))
    narrow.close(1)
    other = begin(narrow, 2, replace(asked, prompt=tuple(some_tokens(180, seed=4))))
    used = narrow.memory()
    with pytest.raises(NoRoom):
        begin(narrow, 3, replace(asked, prompt=tuple(some_tokens(180, seed=5))))
    assert narrow.memory() == used
    # With its pages shared the same prompt still fits.
    told = begin(narrow, 3, asked, resume=first.saved[1])
    assert told.cached == 128
    proof = finish(narrow, told).proof()
    narrow.close(3)
    for saved in first.saved:
        narrow.drop(saved)
    told = begin(narrow, 4, asked)
    assert finish(narrow, told).proof() == proof
    narrow.close(4)
    narrow.close(other.stream)
    assert narrow.memory().used == 0


def test_a_stream_over_the_context_is_refused_in_words_and_claims_nothing(
    narrow: TorchEngine,
) -> None:
    with pytest.raises(Refused, match=r"187 prompt tokens and 6 .* context of 192"):
        begin(narrow, 1, asked_of(187))
    assert narrow.memory().used == 0
    begin(narrow, 1, asked_of(186))


def test_a_mark_inside_a_piece_keeps_nothing_and_a_mark_at_its_end_does(
    engine: TorchEngine,
) -> None:
    prompt = tuple(some_tokens(150))
    engine.open(Opening(stream=1, prompt=prompt, most=1, marks=(64, 128)))
    results = engine.fill([Piece(stream=1, start=0, end=128)]).land()
    assert results[0].saved is not None
    assert results[0].saved.rows == 128
    assert len(engine.storage.kept) == 1


@pytest.mark.parametrize(
    "entries",
    [
        (PerToken(name="latent", width=3),),
        (Fixed(name="state", shape=(2,)),),
        (Fixed(name="state", shape=(2,)), Fixed(name="count", shape=(1,), dtype="int32")),
    ],
)
def test_a_stream_is_seated_kept_and_resumed_whichever_kinds_of_state_its_family_has(
    entries: tuple[PerToken | Fixed, ...],
) -> None:
    spec = StateSpec(page=4, entries=entries)
    storage = allocate(spec, lanes=1, context=8, kept_bytes=0, device=torch.device("cpu"))
    seat = storage.claim(4)
    own = [storage.buffers[entry.name] for entry in entries if isinstance(entry, Fixed)]
    for buffer in own:
        buffer.fill_(7)
    _, kept = storage.keep(seat, (1, 2, 3, 4))
    storage.release(seat)
    seat = storage.claim(8, kept.pages)
    assert not any(buffer[seat.lane].any() for buffer in own)
    storage.restore(seat, kept)
    assert all((buffer[seat.lane] == 7).all() for buffer in own)
