"""The prompt shortcut: rows of upper layers that nothing reads are left out, and no bit changes.

What a cut forward does not leave is overwritten with NaN before anything else runs, so that a row
that reads it can not keep its bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.packing import Powers
from tensorfold.core.engine.probe import aheads_of
from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import (
    Filled,
    Flight,
    Landed,
    Opening,
    Piece,
    Sampling,
    Saved,
    Window,
)
from tensorfold.core.family_api import Read
from tensorfold.core.state_spec import PerToken, Ring
from tensorfold.families.dsv41 import shortcut
from tensorfold.families.dsv41.config import Config
from tests.cpu.driving import claim, same_state, some_tokens
from tests.cpu.dsv41.engines import MODES, opened
from tests.cpu.dsv41.test_dspark import drafting_checkpoint

SIZES = {"lanes": 4, "context": 192, "chunk_rows": 192, "window_rows": 6}
LENGTH = 96


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same engine with the shortcut and without it."""

    short: TorchEngine
    whole: TorchEngine

    @property
    def config(self) -> Config:
        config = self.short.model.config  # type: ignore[attr-defined]
        assert isinstance(config, Config)
        return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drafting_checkpoint(tmp_path_factory.mktemp("drafting"))


@pytest.fixture(scope="module", params=[(mode, drafts) for mode in MODES for drafts in (0, 5)])
def engines(request: pytest.FixtureRequest, folder: Path) -> Pair:
    numerics, drafts = request.param
    made = [
        opened(numerics, folder, drafts=drafts, prompt_shortcut=on, **SIZES) for on in (True, False)
    ]
    assert made[0].info.identity == made[1].info.identity
    return Pair(short=made[0], whole=made[1])


@pytest.fixture
def pair(engines: Pair) -> Iterator[Pair]:
    yield engines
    for engine in (engines.short, engines.whole):
        for stream in list(engine.streams):
            engine.close(stream)
        for kept in list(engine.storage.kept):
            engine.storage.drop(kept)


def readable(config: Config, entry: Ring, rows: int, stop: int) -> range:
    """Positions of a ring that rows from `rows` on can read, up to `stop` or behind it."""
    kind, _, layer = entry.name.partition(".")
    if kind == "window":
        reach = shortcut.reaches(config).get(int(layer))
        first = rows - (config.window - 1)
        if reach is not None:
            # At a stop that is everything; before it, what rows that still run look back at.
            first = max(first, stop - reach - (config.window - 1))
    elif kind == "draft":
        first = max(rows - config.window, stop - config.window)
    else:
        first = rows - {"open": rows % 2, "ids": 3}[kind]
    return range(max(0, first), rows)


def state_of(engine: TorchEngine, stream: int, stop: int) -> dict[str, Tensor]:
    """Everything of a stream that can be read again."""
    opened = engine.streams[stream]
    found = stream_state(engine.storage, opened.seat, opened.rows)
    config = engine.model.config  # type: ignore[attr-defined]
    for entry in engine.storage.spec.entries:
        if isinstance(entry, Ring):
            places = [p % entry.rows for p in readable(config, entry, opened.rows, stop)]
            found[entry.name] = found[entry.name][places]
    return found


@torch.inference_mode()
def poison(engine: TorchEngine, stream: int, stop: int) -> None:
    """Overwrite everything else of it."""
    opened = engine.streams[stream]
    page = engine.storage.spec.page
    config = engine.model.config  # type: ignore[attr-defined]
    for entry in engine.storage.spec.entries:
        buffer = engine.storage.buffers[entry.name]
        bad = float("nan") if buffer.is_floating_point() else 2**62
        if isinstance(entry, Ring):
            good = {p % entry.rows for p in readable(config, entry, opened.rows, stop)}
            buffer[opened.seat.lane, sorted(set(range(entry.rows)) - good)] = bad
        else:
            assert isinstance(entry, PerToken)
            paged = buffer.view(-1, page // entry.every, entry.width)
            own = paged[opened.seat.pages].flatten(0, 1)
            own[opened.rows // entry.every :] = bad
            paged[opened.seat.pages] = own.view(-1, *paged.shape[1:])


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a pass and some rounds after it gave, and the state after each step."""

    filled: list[Filled]
    landed: list[Landed]
    states: list[dict[str, Tensor]]

    @property
    def saved(self) -> list[Saved]:
        return [one.saved for one in self.filled if one.saved is not None]


def same(one: Ran, other: Ran) -> bool:
    """Kept states have numbers of their own."""

    def bare(ran: Ran) -> list[Any]:
        fields = ("token", "logprob", "rows", "drafts", "chances", "fault")
        return [[getattr(filled, name) for name in fields] for filled in ran.filled]

    return (
        bare(one) == bare(other)
        and one.landed == other.landed
        and len(one.states) == len(other.states)
        and all(map(same_state, one.states, other.states))
    )


def run(
    engine: TorchEngine,
    prompt: Sequence[int],
    cuts: Sequence[int],
    *,
    marks: Sequence[int] = (),
    resume: Saved | None = None,
    asked: Sequence[bool] | bool = False,
    rounds: int = 3,
) -> Ran:
    """A prompt cut at `cuts`, then rounds in which some guesses are wrong."""
    most = 20
    opening = Opening(
        stream=1,
        prompt=tuple(prompt),
        most=most,
        sampling=Sampling(temperature=1.0, top_p=0.9),
        seed=3,
        logprobs=3,
        marks=tuple(marks),
        resume=resume,
    )
    start, end = engine.open(opening).cached, len(prompt)
    assert start == (resume.rows if resume else 0)
    ran = Ran(filled=[], landed=[], states=[])

    def look(stop: int) -> None:
        ran.states.append(state_of(engine, 1, stop))
        if engine.prompting.shortcut:
            poison(engine, 1, stop)

    for number, cut in enumerate([*sorted(cut for cut in cuts if start < cut < end), end]):
        wanted = asked if isinstance(asked, bool) else asked[number]
        piece = Piece(stream=1, start=start, end=cut, want=5, logprobs=1 if wanted else None)
        ran.filled.extend(engine.fill([piece]).land())
        stop = min([mark for mark in marks if mark >= cut], default=end)
        look(cut if wanted else stop)
        start = cut
    token, drafts = ran.filled[-1].token, ran.filled[-1].drafts
    assert token is not None, ran.filled[-1]
    for number in range(rounds):
        guesses = drafts or (5, 6, 7)
        window = Window(stream=1, tokens=(token, *guesses[: number % 4]), want=5)
        ran.landed.extend(engine.round([window]).land())
        token, drafts = ran.landed[-1].tokens[-1], ran.landed[-1].drafts
        look(engine.streams[1].rows)
    engine.close(1)
    return ran


@pytest.mark.parametrize("first", [1, 25, 49, 73])
def test_every_cut_of_a_prompt_gives_the_bits_of_running_all_of_it(pair: Pair, first: int) -> None:
    tokens = some_tokens(LENGTH)
    for cut in range(first, min(first + 24, LENGTH)):
        found, wanted = (run(one, tokens, [cut], rounds=1) for one in (pair.short, pair.whole))
        assert same(found, wanted), cut


def test_prompts_that_were_cut_anywhere_end_alike(pair: Pair) -> None:
    tokens = some_tokens(LENGTH)
    # Without the state in between, which the cuts do not share.
    ends = [run(pair.short, tokens, [cut]) for cut in (1, 17, 74, 75, 81, 88, 95)]
    wanted = run(pair.whole, tokens, [])
    for ran in ends:
        assert ran.filled[-1] == wanted.filled[-1]
        assert ran.landed == wanted.landed
        assert all(map(same_state, ran.states[-4:], wanted.states[-4:]))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 23, 64, 130])
def test_prompts_of_every_size(pair: Pair, length: int) -> None:
    tokens = some_tokens(length, seed=length)
    for cuts in ([], list(range(1, length, 5)), list(range(5, length, 31))):
        assert same(run(pair.short, tokens, cuts), run(pair.whole, tokens, cuts)), cuts


@pytest.mark.parametrize("cuts", [[], [31, 40, 41, 80, 90]])
def test_states_kept_at_marks_are_whole_and_prompts_resume_from_them(
    pair: Pair, cuts: list[int]
) -> None:
    tokens = some_tokens(150)
    for marks in ([40], [2, 3, 64, 95]):
        at = sorted({*cuts, *marks})
        ran = [run(engine, tokens[:96], at, marks=marks) for engine in (pair.short, pair.whole)]
        assert same(*ran)
        assert [saved.rows for saved in ran[0].saved] == marks
        for mark, short, whole in zip(marks, ran[0].saved, ran[1].saved, strict=True):
            for length in (mark + 3, 150):
                wanted = run(pair.whole, tokens[:length], [], resume=whole)
                found = run(pair.short, tokens[:length], [], resume=short)
                assert same(found, wanted), (mark, length)
                cut = run(pair.short, tokens[:length], [*cuts, mark + 4, 120], resume=short)
                assert cut.filled[-1] == wanted.filled[-1]
                assert cut.landed == wanted.landed


def test_packed_prompts_each_read_their_own(pair: Pair) -> None:
    lengths = (9, 1, 60, 33)
    prompts = [tuple(some_tokens(length, seed=length)) for length in lengths]
    alone = [run(pair.whole, prompt, [], rounds=0) for prompt in prompts]
    for stream, prompt in enumerate(prompts):
        pair.short.open(Opening(stream=stream, prompt=prompt, most=20, seed=3, logprobs=3))
    # Nobody's rows, and those of prompts that went in before.
    for stream in range(4):
        poison(pair.short, stream, 0)
    pieces = [Piece(stream=n, start=0, end=length) for n, length in enumerate(lengths)]
    pair.short.fill(pieces).land()
    for stream, ran in enumerate(alone):
        found = state_of(pair.short, stream, lengths[stream])
        assert same_state(found, ran.states[-1]), stream


@pytest.mark.parametrize("cut", [1, 17, 40, 74, 88, 95])
def test_a_last_piece_of_few_rows_runs_whole_behind_rows_that_were_left_out(
    pair: Pair, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a device has it that captures such pieces: what they need is there, and no more of it."""
    tokens, engine = some_tokens(LENGTH), pair.short
    buckets = Powers(tile=engine.tile, most_rows=engine.info.round_rows, most_window=6)
    plain = engine.prompting
    rounding = replace(plain, captures=True, buckets=buckets)
    own = engine.fill

    def fill(pieces: Sequence[Piece]) -> Flight[Filled]:
        last = pieces[0].end == LENGTH
        monkeypatch.setattr(engine, "prompting", rounding if last else plain)
        return own(pieces)

    monkeypatch.setattr(engine, "fill", fill)
    found, wanted = run(engine, tokens, [cut]), run(pair.whole, tokens, [cut])
    assert engine.hidden, "no piece was rounded up"
    assert found.filled == wanted.filled
    assert found.landed == wanted.landed
    assert all(map(same_state, found.states[-4:], wanted.states[-4:]))


@pytest.mark.parametrize("cuts", [[], [31], [5, 40, 60, 90]])
def test_log_probabilities_of_prompt_rows(pair: Pair, cuts: list[int]) -> None:
    tokens = some_tokens(LENGTH)
    found, wanted = (run(engine, tokens, cuts, asked=True) for engine in (pair.short, pair.whole))
    assert same(found, wanted)
    assert sum(len(one.rows) for one in found.filled) == LENGTH - 1


def test_log_probabilities_are_asked_from_the_start_or_a_mark_on(pair: Pair) -> None:
    tokens = some_tokens(LENGTH)
    asked = [False, True, True]
    found, wanted = (
        run(engine, tokens, [40, 70], marks=[40], asked=asked)
        for engine in (pair.short, pair.whole)
    )
    assert same(found, wanted)
    for engine in (pair.short, pair.whole):
        with pytest.raises(AssertionError, match="ran unread"):
            run(engine, tokens, [41, 70], marks=[40], asked=asked)
        engine.close(1)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("ahead", "rows"), [(0, [16, 8, 8]), (30, []), (10, [8, 0]), (3, [16, 8, 0])]
)
def test_only_rows_that_reach_a_stop_are_run(pair: Pair, ahead: int, rows: list[int]) -> None:
    """Of 96 rows: 15, 8 and 1 leave the three upper layers up to a stop, in whole tiles."""
    engine, model = pair.short, pair.short.model
    went: list[int] = []
    kinds = model.kinds  # type: ignore[attr-defined]

    def counting(*args: Any) -> Any:
        went.append(args[-1].x_RND.shape[0])
        return kinds.moe(*args)

    model.kinds = kinds._replace(moe=counting)  # type: ignore[attr-defined]
    seat = claim(engine, LENGTH)
    built = batch.build(
        [Run(some_tokens(LENGTH), seat.lane, 0)], engine.storage, prompt=True, tile=8, context=192
    )
    whole_RD = model.prompt(built)
    assert went == [LENGTH] * 7
    went.clear()
    hidden_RD = model.prompt(built._replace(reads=(Read(LENGTH, ahead),)))
    model.kinds = kinds  # type: ignore[attr-defined]
    engine.storage.release(seat)
    assert went == [LENGTH] * 4 + [count for count in rows if count]
    read = [LENGTH - 1] if ahead == 0 else []
    assert torch.equal(hidden_RD[read], whole_RD[read])
    left_out = [row for row in range(LENGTH) if row not in read]
    assert bool(hidden_RD[left_out].isnan().all())


def last_of(config: Config, ahead: int) -> tuple[bool, bool, bool]:
    """Whether a prompt's forward ends before the last layer, there with compressed rows, and with
    rows that leave something in its window: what tells one compiled form of it from another."""
    found = shortcut.layers(config, [Read(264, ahead)], 264)
    layer, rows = max(found.items(), default=(config.layers, None))
    ends = rows is not None and not len(rows.goes)
    return ends, ends and layer == config.kv_sources[-1], ends and bool(len(rows.keys))


def test_a_start_ends_prompts_in_every_way_that_a_request_may(pair: Pair) -> None:
    config, context = pair.config, pair.short.info.context
    tried = aheads_of(pair.short.model, context)
    assert {last_of(config, ahead) for ahead in range(context + 1)} == {
        last_of(config, ahead) for ahead in tried
    }
    assert len(tried) <= 4
