"""NaN and infinity: they end the stream they are in, and no other ever sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from tensorfold.core.engine import checks
from tensorfold.core.engine.landing import FAULTS
from tensorfold.core.engine.step import NO_LOGITS
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Landed, Sampling, Window
from tensorfold.families.glm53.model import Glm53
from tests.cpu.driving import (
    VOCAB,
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

NAN, INF = math.nan, math.inf
# A token that nobody's prompt holds, whose embedding a test poisons.
BAD = 159


def asked_of(number: int, length: int = 70) -> Asked:
    prompt = tuple(token % 150 for token in some_tokens(length, seed=number))
    sampling = Sampling(temperature=1.0, top_p=0.9) if number % 2 else Sampling()
    return Asked(prompt=prompt, most=6, sampling=sampling, seed=number + 50)


@pytest.fixture
def poison(shared_engine: TorchEngine) -> Iterator[Callable[[float], None]]:
    """Sets the embedding of `BAD`; put back after."""
    assert isinstance(shared_engine.model, Glm53)
    row = shared_engine.model.weights.embed[BAD]
    before = row.clone()

    @torch.inference_mode()
    def put(value: float) -> None:
        row.fill_(value)

    yield put
    with torch.inference_mode():
        row.copy_(before)


@torch.inference_mode()
def ruin(engine: TorchEngine, stream: int, value: float, names: tuple[str, ...]) -> None:
    """Fills parts of one stream's state."""
    seat = engine.streams[stream].seat
    for name, buffer in engine.storage.buffers.items():
        if not name.startswith(names):
            continue
        if name.startswith(("latent", "pool")):
            pages = buffer.view(engine.storage.pages + 1, -1)
            for page in seat.pages:
                pages[page].fill_(value)
        else:
            buffer[seat.lane].fill_(value)


@torch.inference_mode()
def ruin_unclaimed(engine: TorchEngine, value: float) -> None:
    """Fills every lane and page that no stream and no kept state holds, the spare ones too."""
    storage = engine.storage
    for name, buffer in storage.buffers.items():
        if name.startswith(("latent", "pool")):
            pages = buffer.view(storage.pages + 1, -1)
            for page in (*storage.free_pages, storage.spare_page):
                pages[page].fill_(value)
        else:
            for lane in (*storage.free_lanes, storage.spare_lane):
                buffer[lane].fill_(value)


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_prompt_without_finite_logits_faults_alone_in_its_pack(
    engine: TorchEngine, poison: Callable[[float], None], value: float
) -> None:
    good = [asked_of(1), asked_of(2)]
    wanted = [alone(engine, asked).proof() for asked in good]
    poison(value)
    bad = Asked(prompt=(*some_tokens(40)[:39], BAD))
    tolds = [begin(engine, 0, good[0]), begin(engine, 1, bad), begin(engine, 2, good[1])]
    fill(engine, *((told, 0, len(told.asked.prompt)) for told in tolds))
    assert [told.fault for told in tolds] == [None, FAULTS[NO_LOGITS], None]
    assert tolds[1].tokens == []
    engine.close(1)
    while not tolds[0].done:
        step(engine, [tolds[2], tolds[0]])
    assert [tolds[0].proof(), tolds[2].proof()] == wanted


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "names", [("kda",), ("conv",), ("latent",), ("kda", "conv", "latent", "pool", "tail")]
)
def test_a_ruined_state_faults_its_stream_and_the_others_go_on_as_if_alone(
    engine: TorchEngine, value: float, names: tuple[str, ...]
) -> None:
    orders = [asked_of(number) for number in range(4)]
    wanted = [alone(engine, asked).proof() for asked in orders]
    tolds = [begin(engine, stream, asked) for stream, asked in enumerate(orders)]
    for told in tolds:
        fill_all(engine, told)
    step(engine, tolds)
    ruin(engine, 2, value, names)
    step(engine, tolds, {2: (5, 6), 0: (1,)})
    assert [told.fault for told in tolds] == [None, None, FAULTS[NO_LOGITS], None]
    assert len(tolds[2].tokens) == 2
    engine.close(2)
    # Its lane and pages go to the next stream, which must find nothing of it.
    late = begin(engine, 9, orders[2])
    fill_all(engine, late)
    while live := [told for told in (*tolds[:2], tolds[3], late) if not told.done]:
        step(engine, live)
    assert [told.proof() for told in (*tolds[:2], late, tolds[3])] == wanted


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_bad_guess_row_that_is_rejected_harms_nobody(
    engine: TorchEngine, poison: Callable[[float], None], value: float
) -> None:
    asked = asked_of(1)
    wanted = alone(engine, asked)
    assert BAD not in wanted.tokens
    poison(value)
    told = begin(engine, 1, asked)
    fill_all(engine, told)
    while not told.done:
        step(engine, [told], {1: (BAD, 3) if len(told.tokens) < 4 else ()})
    assert told.proof() == wanted.proof()


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_guess_that_comes_true_at_a_bad_row_is_committed_before_the_fault(
    engine: TorchEngine, poison: Callable[[float], None], value: float, place: int
) -> None:
    """As without guesses: the token is there, the reply may end with it, the next round faults."""
    asked = asked_of(1)
    wanted = alone(engine, asked).tokens
    poison(value)
    only_bad = bytearray(VOCAB // 8)
    only_bad[BAD // 8] = 1 << BAD % 8
    masks = (*[None] * (place - 1), bytes(only_bad))
    for guesses in ((), (BAD,), (BAD, 3)):
        told = begin(engine, 1, asked)
        fill_all(engine, told)
        tokens = (*wanted[:place], *guesses)
        window = Window(stream=1, tokens=tokens, masks=(*masks, *[None] * len(guesses)))
        (landed,) = engine.round([window]).land()
        assert (landed.tokens, landed.fault) == ((*wanted[1:place], BAD), None)
        (landed,) = engine.round([Window(stream=1, tokens=(BAD,))]).land()
        assert landed == Landed(stream=1, fault=FAULTS[NO_LOGITS])
        engine.close(1)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_nothing_unclaimed_is_ever_read(engine: TorchEngine, value: float, length: int) -> None:
    """Freed lanes and pages, the spare ones and their padding rows full of NaN or infinity."""
    orders = [asked_of(length), asked_of(length + 1, 66)]
    wanted = [alone(engine, asked).proof() for asked in orders]
    ruin_unclaimed(engine, value)
    assert [alone(engine, asked).proof() for asked in orders] == wanted
    tolds = [begin(engine, stream, asked) for stream, asked in enumerate(orders)]
    ruin_unclaimed(engine, value)
    fill(engine, *((told, 0, len(told.asked.prompt)) for told in tolds))
    while not tolds[0].done:
        ruin_unclaimed(engine, value)
        step(engine, tolds)
    assert [told.proof() for told in tolds] == wanted


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("form", ["library", "fallback"])
def test_pages_of_a_ruined_stream_carry_nothing_into_the_next(value: float, form: str) -> None:
    """One lane, so that the next stream gets exactly the ruined lane and pages."""
    verdict = checks.holds if form == "library" else lambda *_: False
    engine = opened(verdict=verdict, lanes=1, context=192, chunk_rows=192)
    asked = asked_of(3, 66)
    wanted = alone(engine, asked).proof()
    told = begin(engine, 1, asked_of(5, 150))
    fill_all(engine, told)
    ruin(engine, 1, value, ("kda", "conv", "latent", "pool", "tail"))
    ruin_unclaimed(engine, value)
    step(engine, [told])
    assert told.fault == FAULTS[NO_LOGITS]
    engine.close(1)
    assert alone(engine, asked).proof() == wanted


def test_a_faulted_piece_keeps_no_state(
    engine: TorchEngine, poison: Callable[[float], None]
) -> None:
    poison(NAN)
    asked = Asked(prompt=(*some_tokens(10), BAD, *some_tokens(89)))
    told = begin(engine, 1, asked, marks=(64,))
    fill(engine, (told, 0, 64))
    assert told.fault == FAULTS[NO_LOGITS]
    assert told.saved == []
    assert engine.storage.kept == {}


def test_a_kept_state_outlives_the_fault_of_its_stream(engine: TorchEngine) -> None:
    asked = asked_of(4, 100)
    wanted = alone(engine, asked).proof()
    told = begin(engine, 1, asked, marks=(64,))
    fill_all(engine, told, (64,))
    ruin(engine, 1, NAN, ("kda", "conv", "tail"))
    step(engine, [told])
    assert told.fault == FAULTS[NO_LOGITS]
    engine.close(1)
    again = begin(engine, 2, asked, resume=told.saved[0])
    fill_all(engine, again)
    while not again.done:
        step(engine, [again])
    assert again.proof() == wanted


def test_a_round_in_which_every_row_is_bad_samples_nothing(engine: TorchEngine) -> None:
    tolds: list[Told] = [begin(engine, stream, asked_of(stream)) for stream in range(3)]
    for told in tolds:
        fill_all(engine, told)
        ruin(engine, told.stream, NAN, ("kda",))
    step(engine, tolds, {0: (1, 2, 3)})
    assert [told.fault for told in tolds] == [FAULTS[NO_LOGITS]] * 3
    assert [len(told.tokens) for told in tolds] == [1] * 3
