"""Drafts of the family's own layer change how many rounds a reply takes, and no byte of it.

Replies are made by the lane host over engines with and without drafts; the undrafted reply alone
is what every other must equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Sampling, TokenLogprob, Window
from tensorfold.core.errors import StartError
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.stream import Delivery, End, Job
from tests.cpu.driving import GRID, opened, some_tokens, variant
from tests.cpu.steps import self_drafted

TINY = Path(__file__).parents[2] / "families" / "glm53" / "tiny"
HOW = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_p=0.9, top_k=40, min_p=0.02),
)


class Read:
    """Deliveries as a reader sees them."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.ends: dict[int, End] = {}

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        for one in deliveries:
            self.tokens.setdefault(one.stream, []).extend(one.tokens)
            self.logprobs.setdefault(one.stream, []).extend(one.logprobs)
            if one.end is not None:
                assert one.stream not in self.ends, one
                self.ends[one.stream] = one.end


def replies(engine: TorchEngine, jobs: Sequence[Job]) -> Read:
    """All jobs submitted at once and run to their ends."""
    read = Read()
    host = Host(engine, read.deliver)
    host.submit(jobs)
    while host.turn():
        pass
    assert set(read.ends) == {job.stream for job in jobs}
    assert not engine.streams
    return read


def job(stream: int, prompt: Sequence[int], most: int, how: Sampling, **given: object) -> Job:
    made = Job(
        stream=stream,
        prompt=tuple(prompt),
        most=most,
        sampling=how,
        seed=stream * 7 - 3,
        logprobs=2,
    )
    return replace(made, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def undrafted() -> TorchEngine:
    return opened()


@pytest.fixture(scope="module", params=(2, 5))
def drafted(request: pytest.FixtureRequest) -> Iterator[TorchEngine]:
    engine = opened(drafts=request.param)
    assert engine.info.drafts == request.param
    yield engine
    assert engine.memory().used == 0


@pytest.mark.parametrize("how", HOW, ids=("greedy", "sampled", "cut"))
def test_a_drafted_reply_has_the_bytes_of_the_undrafted_one(
    undrafted: TorchEngine, drafted: TorchEngine, how: Sampling
) -> None:
    for stream, length in enumerate((1, 17, 64, 70), 1):
        asked = [job(stream, some_tokens(length, stream), 24, how)]
        alone, guessed = replies(undrafted, asked), replies(drafted, asked)
        assert guessed.tokens == alone.tokens
        assert guessed.logprobs == alone.logprobs
        assert guessed.ends[stream].counts.drafted > 0
        assert guessed.ends[stream].counts.token_sha256 == alone.ends[stream].counts.token_sha256


@settings(max_examples=6, deadline=None)
@given(
    wanted=st.lists(
        st.tuples(st.integers(1, 90), st.integers(1, 30), st.sampled_from(HOW), st.booleans()),
        min_size=2,
        max_size=10,
    )
)
def test_company_and_drafts_change_nothing_together(
    undrafted: TorchEngine,
    drafted: TorchEngine,
    wanted: list[tuple[int, int, Sampling, bool]],
) -> None:
    jobs = [
        job(stream, some_tokens(length, stream), most, how, draft=draft)
        for stream, (length, most, how, draft) in enumerate(wanted, 1)
    ]
    together = replies(drafted, jobs)
    for one in jobs:
        alone = replies(undrafted, [one])
        assert together.tokens[one.stream] == alone.tokens[one.stream]
        assert together.logprobs[one.stream] == alone.logprobs[one.stream]
        if not one.draft:
            assert together.ends[one.stream].counts.drafted == 0


def test_an_end_token_a_stop_and_the_length_hold_at_every_place_inside_a_window(
    undrafted: TorchEngine, drafted: TorchEngine
) -> None:
    prompt = some_tokens(20, 9)
    whole = replies(undrafted, [job(1, prompt, 14, Sampling())]).tokens[1]
    for place in range(1, 14):
        token = whole[place]
        first = whole.index(token)
        ended = replies(drafted, [job(1, prompt, 14, Sampling(), end_tokens=frozenset({token}))])
        assert (ended.tokens[1], ended.ends[1].reason) == (whole[: first + 1], "end_token")
        stopped = replies(
            drafted,
            [job(1, prompt, 14, Sampling(), ends=lambda tokens, at=place: len(tokens) > at)],
        )
        assert (stopped.tokens[1], stopped.ends[1].reason) == (whole[: place + 1], "stop")
        short = replies(drafted, [job(1, prompt, place, Sampling())])
        assert (short.tokens[1], short.ends[1].reason) == (whole[:place], "length")


def test_a_draft_layer_that_gives_no_number_costs_drafts_and_no_reply(
    undrafted: TorchEngine, tmp_path: Path
) -> None:
    def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * float("nan") if "layers.6.eh_proj" in name else tensor

    engine = opened(variant(tmp_path, {}, change), drafts=2)
    asked = [job(1, some_tokens(30), 12, Sampling())]
    found = replies(engine, asked)
    assert found.tokens == replies(undrafted, asked).tokens
    assert found.ends[1].counts.drafted == 0


def flat(folder: Path) -> Path:
    """Model and draft layer give equal logits, so that noise alone tells tokens."""

    def change(name: str, tensor: torch.Tensor) -> torch.Tensor:
        norm = name.endswith(("language_model.norm.weight", "shared_head.norm.weight"))
        return tensor * 0 if norm else tensor

    return variant(folder, {}, change)


@pytest.mark.parametrize("how", HOW, ids=("greedy", "sampled", "cut"))
def test_drafts_are_drawn_with_the_noise_of_the_positions_they_guess(
    tmp_path: Path, how: Sampling
) -> None:
    engine = opened(flat(tmp_path), drafts=3)
    assert self_drafted(engine, how, 8) == (33, 24, 24)


@pytest.mark.parametrize("context", [128, 192])
@pytest.mark.parametrize("drafts", [1, 4, 7])
def test_drafts_end_where_their_streams_pages_do(tmp_path: Path, drafts: int, context: int) -> None:
    """Every draft lands, and rounds go on up to the last position of whole pages."""
    engine = opened(flat(tmp_path), drafts=drafts, context=context, chunk_rows=128)
    storage = engine.storage
    # Padding is at a page's first row.
    others = storage.buffers["latent.6"].view(storage.pages + 1, GRID, -1)[storage.spare_page, 1:]
    with torch.inference_mode():
        others.fill_(7.0)
    for most in range(1, 20):
        prompt = tuple(some_tokens(128 - most))
        engine.open(Opening(stream=1, prompt=prompt, most=most, sampling=Sampling()))
        piece = Piece(stream=1, start=0, end=len(prompt), want=drafts)
        (filled,) = engine.fill([piece]).land()
        assert filled.token is not None
        made, guesses = [filled.token], filled.drafts
        while left := most - len(made):
            tokens = (made[-1], *guesses[: left - 1])
            (landed,) = engine.round([Window(stream=1, tokens=tokens, want=drafts)]).land()
            assert len(landed.tokens) == len(tokens)
            made, guesses = [*made, *landed.tokens], landed.drafts
        engine.close(1)
    assert bool((others == 7.0).all())


def test_the_bundled_models_own_drafts_land_and_save_rounds() -> None:
    plain = opened(TINY, context=512, chunk_rows=512)
    engine = opened(TINY, context=512, chunk_rows=512, drafts=2)
    prompt = [5, 300, 41, 7, 900, 12, 77, 8]
    for how in HOW[:2]:
        asked = [job(1, prompt, 60, how)]
        wanted, found = replies(plain, asked), replies(engine, asked)
        assert found.tokens == wanted.tokens
        assert found.logprobs == wanted.logprobs
        counts = found.ends[1].counts
        assert counts.rounds < wanted.ends[1].counts.rounds
        assert 0 < counts.accepted <= counts.drafted


def test_more_drafts_than_a_window_holds_or_without_a_layer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"--drafts is 8, .* --window-rows 8 holds at most 7"):
        opened(drafts=8)
    folder = variant(tmp_path, {"num_nextn_predict_layers": 0})
    with pytest.raises(StartError, match="this checkpoint has no draft layer"):
        opened(folder, drafts=1)
