"""Ranks on GPUs: replies and log-probabilities are those of one rank, bit for bit, in every kind of
company, with a GPU each over NCCL and on one GPU; and a rank that is gone ends the others."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorfold.core.backend_api import EngineOrder, Place
from tensorfold.core.engine.index_split import IndexSplit
from tensorfold.core.engine.ranks import follow, following, leading
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Engine, Opening, Piece, Sampling, Window
from tensorfold.core.errors import EngineLost, StartError
from tensorfold.core.family_api import Family
from tensorfold.core.settings import read
from tensorfold.core.share import Share
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tensorfold.tools.split_scenes import FULL, LANES, WINDOW, Case, check
from tests.cpu.driving import Asked, begin, some_tokens, step, take
from tests.cpu.ranks.running import free_port, led, on_ranks
from tests.cpu.ranks.scenes import everything, job, replies

FAMILIES = {"glm53": GLM53, "dsv41": DSV41}
FOLDERS = Path(__file__).parents[2] / "families"
SIZES = {"lanes": 8, "context": 4096, "chunk_rows": 512, "window_rows": 8, "drafts": 3}
SIZES |= {"copies": False, "backend": "cuda-triton", "compile": False}
# Past where a glm53 index picks, in chunks.
LONG = 2600
# For a group to start with nothing compiled and play all scenes; a test plays them twice at most.
PLAY_SECONDS = 200
NAMES = pytest.mark.parametrize("name", FAMILIES)
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 GPUs")
pytestmark = [
    pytest.mark.timeout(2 * PLAY_SECONDS + 60),
    # Each wants all of the GPUs that there are.
    pytest.mark.xdist_group("ranks"),
    # The compiler imports a part of torch that torch itself has deprecated.
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),
]


def opened(place: Place | None, name: str, *, beside: bool = False, **flags: Any) -> TorchEngine:
    """A rank with a GPU of its own, or `beside` the others on one."""
    from tensorfold.backends.cuda_triton.backend import open_engine
    from tests.device.one_gpu import opened_beside

    family: Family = FAMILIES[name]
    order = EngineOrder(
        settings=read(SIZES | flags, {}), folder=FOLDERS / name / "tiny", family=family, place=place
    )
    return opened_beside(order) if beside else open_engine(order)


def long_prompt(engine: Engine, how: str) -> Any:
    """A reply to a long prompt in chunks; those from 512 on have a split index."""
    sampling = Sampling(temperature=0.9)
    asked = Asked(prompt=tuple(some_tokens(LONG, 3)), most=4, sampling=sampling, seed=3)
    told = begin(engine, 1, asked)
    for start in range(0, LONG, 512):
        end = min(LONG, start + 512)
        piece = Piece(stream=1, start=start, end=end, split=how if start else "")
        take(told, engine.fill([piece]).land()[0])
    while not told.done:
        step(engine, [told])
    engine.close(1)
    return told.proof()


def scenes(engine: Engine) -> dict[str, Any]:
    company, by_hand = everything(engine)
    found: dict[str, Any] = {"company": company, "by hand": by_hand}
    for how in ("", "cost", "rows"):
        found[f"long {how}"] = long_prompt(engine, how)
    return found


def few_scenes(engine: Engine) -> dict[str, Any]:
    """Of ranks that take turns on one GPU: a reply alone, drafted and among others, and a long
    prompt."""
    found: dict[str, Any] = {
        "alone": replies(engine, [job(2, draft=False)]),
        "drafted": replies(engine, [job(2, draft=True)]),
        "among others": replies(engine, [job(stream, draft=stream < 2) for stream in range(4)]),
    }
    for how in ("", "cost"):
        found[f"long {how}"] = long_prompt(engine, how)
    return found


def played(place: Place | None, name: str, flags: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    engine = opened(place, name, **flags)
    work = few_scenes if flags.get("beside") else scenes
    info = engine.info
    told = {"identity": info.identity, "device": info.device, "ranks": info.ranks}
    told["checks"] = dict(info.checks)
    return led(place, engine, work), told


Flags = tuple[tuple[str, Any], ...]


@functools.cache
def play(name: str, count: int, flags: Flags) -> list[Any]:
    return on_ranks(count, played, name, dict(flags), seconds=PLAY_SECONDS)


def words(flags: Flags) -> str:
    return "-".join(name if value is True else str(value) for name, value in flags)


EAGER: Flags = (("dtype", "bfloat16"), ("eager", True))
WIDE: Flags = (("dtype", "float32"), ("eager", True))
COMPILED: Flags = (("dtype", "bfloat16"), ("compile", True))
BESIDE: Flags = (("beside", True),)
RUNS = [(EAGER, 2), (EAGER, 4), (WIDE, 4), (COMPILED, 2)]


@pytest.mark.parametrize(
    ("flags", "count"),
    RUNS,
    ids=lambda given: words(given) if isinstance(given, tuple) else str(given),
)
@NAMES
def test_ranks_on_one_gpu_give_the_bits_and_the_identity_of_one(
    name: str, flags: Flags, count: int
) -> None:
    (one, alone), *_ = play(name, 1, flags + BESIDE)
    (found, told), *others = play(name, count, flags + BESIDE)
    for scene, proofs in one.items():
        assert found[scene] == proofs, scene
    assert {own["identity"] for own in (alone, told, *(own for _, own in others))} == {
        alone["identity"]
    }
    assert told["ranks"] == count


FLAGS = (
    (("dtype", "bfloat16"),),
    (("dtype", "float32"),),
    EAGER,
    COMPILED,
)


@TWO_GPUS
@pytest.mark.parametrize("flags", FLAGS, ids=words)
@NAMES
def test_two_ranks_give_the_bits_and_the_identity_of_one(name: str, flags: Flags) -> None:
    (one, alone), *_ = play(name, 1, flags)
    (two, first), (_, second) = play(name, 2, flags)
    for scene, proofs in one.items():
        assert two[scene] == proofs, scene
    assert alone["identity"] == first["identity"] == second["identity"]
    assert [first["device"], second["device"]] == ["cuda:0", "cuda:1"]


def killed(place: Place, at: str) -> Any:
    """Rank 1 is killed in the middle of a call; what rank 0 is told, and after how long."""
    engine = opened(place, "glm53", dtype="bfloat16")
    if place.share.rank:
        link = following(engine, lambda words: None)

        def kill(records: Sequence[Any]) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        # Two streams have had their rounds, and what is captured of them waits for the other rank.
        calls = {"fill": engine.fill, "round": engine.round}
        setattr(engine, at, lambda records: (kill if len(records) > 1 else calls[at])(records))
        follow(engine, link)
        raise AssertionError("rank 1 was not killed")
    first = leading(engine, IndexSplit())
    for stream in range(4):
        first.open(Opening(stream=stream, prompt=(1, 2, 3), most=8))
    pieces = [Piece(stream=stream, start=0, end=3) for stream in range(4)]
    for piece in pieces[:2]:
        first.fill([piece]).land()
        for _ in range(2):
            first.round([Window(stream=piece.stream, tokens=(5,))]).land()
    began = time.monotonic()
    try:
        if at == "fill":
            first.fill(pieces[2:]).land()
        else:
            first.round([Window(stream=stream, tokens=(5,)) for stream in range(2)]).land()
    except EngineLost as error:
        return str(error), time.monotonic() - began
    raise AssertionError("nothing is lost")


@TWO_GPUS
@pytest.mark.parametrize("at", ["fill", "round"])
def test_a_rank_that_is_killed_ends_the_call_of_rank_0_with_the_reason(at: str) -> None:
    said, seconds = on_ranks(2, killed, at, killed=(1,))[0]
    assert said == "rank 1 has ended"
    assert seconds < 10


def killed_ahead(place: Place) -> Any:
    """Rank 1 is killed when rank 0 launches a round ahead; what rank 0 is told, and after how long.
    No call is open while that round waits for the other rank."""
    engine = opened(place, "glm53", dtype="bfloat16")
    if place.share.rank:
        link = following(engine, lambda words: None)
        hear, decided = link.next, list[bool]()

        def next_record() -> Any:
            said = hear()
            if said is not None and "ahead" in said:
                decided.append(said["ahead"])
            if decided == [True] * 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return said

        link.next = next_record  # type: ignore[method-assign]
        follow(engine, link)
        raise AssertionError(f"rank 1 was not killed: {decided}")
    first = leading(engine, IndexSplit())
    first.open(Opening(stream=1, prompt=(1, 2, 3), most=80))
    (filled,) = first.fill([Piece(stream=1, start=0, end=3)]).land()
    token, last = filled.token, time.monotonic()
    try:
        for _ in range(40):
            assert token is not None
            window = Window(stream=1, tokens=(token,), goes_on=True)
            (landed,) = first.round([window]).land()
            (token,), last = landed.tokens, time.monotonic()
    except EngineLost as error:
        seconds = time.monotonic() - last
        first.shutdown()
        return str(error), seconds
    raise AssertionError("nothing is lost")


@TWO_GPUS
def test_a_rank_that_is_killed_while_a_round_runs_ahead_ends_rank_0_with_the_reason() -> None:
    said, seconds = on_ranks(2, killed_ahead, killed=(1,))[0]
    # It is heard, or nobody takes what rank 0 says.
    assert said == "rank 1 has ended"
    assert seconds < 10


def over_nccl(place: Place | None, name: str, flags: dict[str, Any]) -> Any:
    """An engine of one rank that exchanges with itself over NCCL, and lets go at the end."""
    share = Share()
    own = Place(share=share, host="127.0.0.1", port=free_port())
    engine = opened(own, name, **flags)
    found = scenes(engine), engine.info.identity, dict(engine.info.checks)
    assert engine.group is not None
    engine.group.abort()
    return found


@pytest.mark.parametrize("flags", FLAGS, ids=words)
@NAMES
def test_a_group_of_one_over_nccl_gives_the_bits_of_no_group(name: str, flags: Flags) -> None:
    ((one, alone),) = play(name, 1, flags)
    ((found, identity, checks),) = on_ranks(1, over_nccl, name, dict(flags), seconds=PLAY_SECONDS)
    assert found == one
    assert identity == alone["identity"]
    assert checks["shared memory"] is True


def split_on_one_gpu(place: Place, name: str) -> list[Case]:
    sizes = FULL
    flags = {"lanes": LANES, "context": sizes.context, "chunk_rows": sizes.chunk}
    flags |= {"window_rows": WINDOW, "drafts": 0}
    return check(opened(place, name, beside=True, dtype="bfloat16", eager=True, **flags), sizes)


@pytest.mark.parametrize("count", [2, 3])
@NAMES
def test_a_split_index_changes_no_byte_of_a_state(name: str, count: int) -> None:
    for cases in on_ranks(count, split_on_one_gpu, name, seconds=250):
        assert len(cases) == 14
        for case in cases:
            assert case.broken == (), case.words()
            assert case.shared, case.words()


def test_a_rank_without_a_gpu_is_refused_by_its_number() -> None:
    count = torch.cuda.device_count()
    share = Share(rank=count, ranks=count + 1)
    with pytest.raises(
        StartError, match=f"rank {count} of this host has no GPU: there are {count}"
    ):
        opened(Place(share=share, host="127.0.0.1", port=1, local=count), "glm53")
