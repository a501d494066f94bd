"""A round's order that is kept for the next has the words that a fresh one would have."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tensorfold.core import keyed
from tensorfold.core.engine import noise, sampling
from tensorfold.core.engine.ordering import KeptRound, Ordering
from tensorfold.core.engine.packing import Powers
from tensorfold.core.engine.runner import AtOnce
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Sampling, Window
from tensorfold.core.ops.keyed_noise import signed
from tests.cpu.driving import some_tokens
from tests.cpu.steps import SCENES, STREAMS, Scene, begun, family_engine, rebuilt, windows_of


@pytest.fixture(scope="module", params=["mtp", "dspark"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    return family_engine(request.param, tmp_path_factory.mktemp(request.param))


def same_as_fresh(engine: TorchEngine, windows: list[Window]) -> str:
    """Whether the coming round's order is "foreseen", "kept" or "fresh"; it is the same always."""
    kept = engine.ordering.kept
    own: Ordering = replace(engine.ordering)
    assert own.kept is None
    fresh = own.round(windows, own.coming(engine.streams, windows))
    coming = engine.ordering.coming(engine.streams, windows)
    order = engine.ordering.round(windows, coming)
    assert (order.shape, order.told, list(order.asks)) == (
        fresh.shape,
        fresh.told,
        list(fresh.asks),
    )
    assert order.words.tolist() == fresh.words.tolist()
    if coming.foreseen:
        assert kept is engine.ordering.kept
        return "foreseen"
    return "kept" if kept is not None and engine.ordering.kept is kept else "fresh"


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("name", SCENES)
def test_rounds_of_the_same_streams_over_pages_and_widths(
    engine: TorchEngine, name: str, rounded: bool
) -> None:
    info, scene = engine.info, SCENES[name]
    if rounded:
        buckets = Powers(tile=engine.tile, most_rows=info.round_rows, most_window=info.window_rows)
        engine = rebuilt(engine, runner=AtOnce(buckets))
    # One row each and all drafts by turns; never a mask twice the same.
    scene = Scene(how=scene.how, logprobs=scene.logprobs)
    coming = begun(engine, scene)
    seen = Counter[str]()
    for number in range(60):
        plain = number % 20 < 12
        windows = [
            Window(
                stream=stream,
                tokens=tuple(tokens[:1] if plain else tokens),
                want=0 if plain else info.drafts,
            )
            for stream, tokens in coming.items()
            if engine.streams[stream].rows + len(tokens) < engine.streams[stream].end
        ]
        if len(windows) < STREAMS:
            break
        seen[same_as_fresh(engine, windows)] += 1
        for one in engine.round(windows).land():
            coming[one.stream] = [one.tokens[-1], *one.drafts]
    assert seen.total() > 40
    assert seen["foreseen"] > 20
    assert seen["fresh"] > 3
    for stream in coming:
        engine.close(stream)


@pytest.mark.parametrize("name", SCENES)
def test_rounds_of_changing_windows_drafts_and_masks(engine: TorchEngine, name: str) -> None:
    scene, choice = SCENES[name], random.Random(name)
    coming = begun(engine, scene)
    for _ in range(6):
        windows = windows_of(engine, coming, scene, choice)
        same_as_fresh(engine, windows)
        # The same streams with other masks, then fewer of them, then another order of them.
        again = windows_of(engine, coming, scene, choice)
        same_as_fresh(engine, again)
        same_as_fresh(engine, windows[1:])
        same_as_fresh(engine, windows[::-1])
        for one in engine.round(windows).land():
            coming[one.stream] = [one.tokens[-1], *one.drafts]
    for stream in coming:
        engine.close(stream)


def test_a_stream_that_takes_another_ones_number_and_lane_is_not_taken_for_it(
    engine: TorchEngine,
) -> None:
    # The second one's first round begins where the first one's coming round would.
    for length, seed in ((30, 3), (31, 4), (31, 5)):
        how = Sampling(temperature=1.0)
        prompt = tuple(some_tokens(length, seed=seed))
        engine.open(Opening(stream=1, prompt=prompt, most=20, sampling=how, seed=seed))
        (filled,) = engine.fill([Piece(stream=1, start=0, end=length)]).land()
        assert filled.token is not None
        window = [Window(stream=1, tokens=(filled.token,))]
        assert same_as_fresh(engine, window) == "fresh"
        assert same_as_fresh(engine, window) == "foreseen"
        if length == 30:
            engine.round(window).land()
            assert engine.ordering.kept is not None
            assert engine.ordering.kept.placed == [31]
        engine.close(1)


def test_a_round_beyond_a_streams_end_is_not_foreseen_but_refused(engine: TorchEngine) -> None:
    engine.open(Opening(stream=1, prompt=tuple(some_tokens(30)), most=4))
    (filled,) = engine.fill([Piece(stream=1, start=0, end=30)]).land()
    token = filled.token
    # The last token of a reply needs no row: one more than these fits.
    for _ in range(4):
        assert token is not None
        (landed,) = engine.round([Window(stream=1, tokens=(token,))]).land()
        token = landed.tokens[0]
    with pytest.raises(AssertionError, match="34"):
        engine.round([Window(stream=1, tokens=(token,))])
    engine.close(1)


def test_cuts_are_looked_for_as_far_as_they_lately_reached(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a round's draws needed is learned when the next is launched, and sizes follow."""
    monkeypatch.setattr(sampling, "HEAD", 2)
    monkeypatch.setattr(sampling, "OPEN_HEAD", 2)
    how = Sampling(temperature=2.0, top_p=0.9)
    engine.open(Opening(stream=1, prompt=tuple(some_tokens(30)), most=20, sampling=how))
    (filled,) = engine.fill([Piece(stream=1, start=0, end=30)]).land()
    assert filled.token is not None
    stream, token, found = engine.streams[1], filled.token, []
    # As if the prompt's own draw had taught nothing.
    stream.head = 2
    for _ in range(4):
        window = [Window(stream=1, tokens=(token,))]
        found.append(same_as_fresh(engine, window))
        (landed,) = engine.round(window).land()
        token = landed.tokens[0]
    assert stream.head > 2
    assert found.count("fresh") >= 2
    engine.close(1)


def test_sizes_that_change_are_foreseen_and_none_are_made_anew_for_the_same(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go over a width, and draws learn how far their cuts have to be looked for."""
    monkeypatch.setattr(sampling, "HEAD", 2)
    info = engine.info
    buckets = Powers(tile=engine.tile, most_rows=info.round_rows, most_window=info.window_rows)
    engine = rebuilt(engine, runner=AtOnce(buckets))
    made: list[KeptRound] = []
    fresh = Ordering.fresh

    def spied(ordering: Ordering, *args: Any, **named: Any) -> KeptRound:
        found = fresh(ordering, *args, **named)
        if ordering is engine.ordering:
            made.append(found)
        return found

    monkeypatch.setattr(Ordering, "fresh", spied)
    coming = begun(engine, Scene(how=(Sampling(temperature=1.0, top_p=0.5),)), streams=3)
    seen, heads = [], []
    for _ in range(80):
        windows = [Window(stream=stream, tokens=(tokens[0],)) for stream, tokens in coming.items()]
        seen.append(same_as_fresh(engine, windows))
        for one in engine.round(windows).land():
            coming[one.stream] = [*one.tokens]
        heads.append([engine.streams[stream].head for stream in coming])
    for stream in coming:
        engine.close(stream)
    assert engine.redone == 0
    assert seen == ["fresh", *["foreseen"] * 79]
    shapes = [kept.order.shape for kept in made]
    assert len({shape.width for shape in shapes}) > 1
    assert all(one != other for one, other in pairwise(shapes))
    assert sum(one != other for one, other in pairwise(heads)) > len(shapes)


def test_keys_on_the_host_are_those_of_the_noise() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 12345]
    positions = [1, 2, 64, 65, 2**31, 10**12]
    pairs = [(seed, position) for seed in seeds for position in positions]
    begin_N = np.array(
        [(noise.base_key(seed) + keyed.STEP) & keyed.MASK for seed, _ in pairs], dtype=np.uint64
    )
    behind_N = np.array([position - 1 for _, position in pairs], dtype=np.int64)
    wanted = [signed(keyed.row_key(*pair)) for pair in pairs]
    for count in (1, noise.FEW, noise.FEW + 1, len(pairs)):
        for first in range(len(pairs) - count + 1):
            some = slice(first, first + count)
            key_N = np.empty(count, dtype=np.int64)
            noise.write_keys(begin_N[some], behind_N[some], key_N)
            assert key_N.tolist() == wanted[some]
