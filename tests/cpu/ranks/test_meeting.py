"""Ranks that are not alike refuse to start, every one of them, and the difference is named."""

from __future__ import annotations

import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tensorfold.backends.cpu_reference import backend as cpu_reference
from tensorfold.core.backend_api import Place
from tensorfold.core.engine import coming, gloo, meeting
from tensorfold.core.engine.index_split import IndexSplit
from tensorfold.core.engine.ranks import leading
from tensorfold.core.engine_api import RankBytes
from tensorfold.core.errors import RankGone, StartError
from tensorfold.core.share import Share
from tests.cpu.driving import CKPT, variant
from tests.cpu.ranks.running import free_port, on_ranks, opened_at


def refused(place: Place, folders: list[Path], flags: list[dict[str, Any]], version: str) -> str:
    if version and place.share.rank == 1:
        meeting.VERSION = version
    try:
        opened_at(place, folders[place.share.rank], **flags[place.share.rank])
    except StartError as error:
        return str(error)
    return ""


def words(
    folders: list[Path] | None = None,
    flags: list[dict[str, Any]] | None = None,
    version: str = "",
) -> list[str]:
    """What each of two ranks says at its start."""
    found: list[str] = on_ranks(2, refused, folders or [CKPT, CKPT], flags or [{}, {}], version)
    return found


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"lanes": 4}, "rank 1 has --lanes 4, and rank 0 has 8"),
        ({"drafts": 2}, "rank 1 has --drafts 2, and rank 0 has 0"),
        ({"threads": 2}, "rank 1 has --threads 2, and rank 0 has 1"),
        ({"expert_cut": "width"}, "rank 1 has --expert-cut 'width', and rank 0 has 'ids'"),
    ],
)
def test_another_setting_of_the_engine(flags: dict[str, Any], said: str) -> None:
    for told in words(flags=[{}, flags]):
        assert told.startswith(said), told


def test_another_version() -> None:
    for told in words(version="0.0"):
        assert told.startswith("rank 1 has version '0.0', and rank 0 has "), told


def test_other_weights_of_the_same_shapes(tmp_path: Path) -> None:
    def change(name: str, tensor: Tensor) -> Tensor:
        return (
            tensor + torch.finfo(torch.float32).eps if name.endswith("lm_head.weight") else tensor
        )

    folders = [variant(tmp_path / "one", {}), variant(tmp_path / "two", {}, change)]
    for told in words(folders=folders):
        assert re.match(r"rank 1 has model\.safetensors '[0-9a-f ]+', and rank 0 has", told), told


def test_another_config(tmp_path: Path) -> None:
    folders = [variant(tmp_path / "one", {}), variant(tmp_path / "two", {"swiglu_limit": 9.0})]
    for told in words(folders=folders):
        assert told.startswith("rank 1 has config.json '"), told


def test_what_one_rank_cannot_load_is_told_by_all(tmp_path: Path) -> None:
    empty = variant(tmp_path / "empty", {})
    (empty / "model.safetensors").unlink()
    first, second = words(folders=[CKPT, empty])
    assert "holds neither model.safetensors" in second
    assert first == f"rank 1: {second}"


def failing(place: Place) -> str:
    def work() -> None:
        if place.share.rank == 1:
            raise KeyError("of rank 1")

    try:
        meeting.together(gloo.connect(place), work)
    except Exception as error:
        return repr(error)
    return ""


def test_what_one_rank_alone_fails_in_is_told_by_all() -> None:
    words = "rank 1: KeyError: 'of rank 1'"
    assert on_ranks(2, failing) == [repr(StartError(words)), repr(KeyError("of rank 1"))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({"n_routed_experts": 12}, "--ranks is 2, and n_routed_experts of 12 cannot be cut"),
        ({"intermediate_size": 90}, "--ranks is 2, and intermediate_size of 90 cannot be cut"),
    ],
)
def test_a_model_that_cannot_be_cut(tmp_path: Path, text: dict[str, Any], said: str) -> None:
    folder = variant(tmp_path / "model", text)
    for told in words(folders=[folder, folder]):
        assert told.startswith(said) or told.startswith(f"rank 0: {said}"), told


FREE = 1 << 30


class Holding(NamedTuple):
    """What a rank tells of all ranks, and what it holds itself."""

    told: tuple[RankBytes, ...]
    weights: int
    state: int


def held_or_refused(place: Place | None, free: tuple[int, ...]) -> Holding | str:
    """Of a rank that has so much memory left."""
    cpu_reference.free_bytes = lambda: free[place.share.rank if place else 0]
    try:
        engine = opened_at(place)
    except StartError as error:
        return str(error)
    model: Any = engine.model
    leaves = [leaf for leaf in tree_leaves(model.weights) if isinstance(leaf, Tensor)]
    buffers = engine.storage.buffers.values()
    return Holding(engine.info.rank_bytes, bytes_of(leaves), bytes_of(buffers))


def bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("count", [1, 3])
def test_every_rank_tells_what_each_holds_and_has_left(count: int) -> None:
    free = tuple(FREE + rank for rank in range(count))
    found = on_ranks(count, held_or_refused, free)
    whole = sum(tensor.nbytes for tensor in load_file(CKPT / "model.safetensors").values())
    for own in found:
        assert [one.free for one in own.told] == list(free)
        assert [one.state for one in own.told] == [other.state for other in found]
        for one, other in zip(own.told, found, strict=True):
            # Besides the checkpoint's tensors there are a few numbers that layers read.
            assert one.weights <= other.weights < one.weights * 1.01
            assert one.weights == whole if count == 1 else one.weights < whole


def test_lanes_that_do_not_fit_on_one_rank_are_refused_by_all_with_its_number() -> None:
    said = on_ranks(2, held_or_refused, (FREE, 2_600_000))
    assert re.match(r"8 lanes of 320 tokens need .* beside the weights: --lanes \d", said[1]), said
    assert said[0] == f"rank 1: {said[1]}"


@pytest.mark.parametrize("when", ["before it loads", "in a forward", "before it is linked"])
def test_a_rank_that_ends_before_all_are_ready(when: str) -> None:
    assert on_ranks(2, leaving, when) == ["rank 1 ended before all were ready", ""]


class Leaving(Exception):
    pass


def leaving(place: Place, when: str) -> str:
    def leave(*args: Any) -> Any:
        raise Leaving

    if place.share.rank == 1 and when == "in a forward":
        gloo.GlooGroup.gather = leave  # type: ignore[method-assign]
        with pytest.raises(Leaving):
            opened_at(place)
        return ""
    if place.share.rank == 1:
        (opened_at if when == "before it is linked" else gloo.connect)(place)
        return ""
    if when == "before it is linked":
        engine = opened_at(place)
        try:
            leading(engine, IndexSplit())
        except StartError as error:
            return str(error)
    return refused(place, [CKPT, CKPT], [{}, {}], "")


def test_a_rank_of_another_number_of_ranks_is_refused_and_waits_for_nobody() -> None:
    port = free_port()

    def met(rank: int, ranks: int) -> object:
        share = Share(rank=rank, ranks=ranks)
        place = Place(share=share, host="127.0.0.1", port=port, local=rank)
        return gloo.met(place, lambda store, coming: store)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(met, (0, 1), (2, 2))
    with pytest.raises(StartError, match=r"rank 2 is one of 3, and rank 0 at .* is one of 2"):
        met(2, 3)
    assert first != second


def test_a_rank_that_never_comes_is_named_after_the_time_that_is_set_and_where_it_was_missed() -> (
    None
):
    port = free_port()
    place = Place(share=Share(ranks=3), host="127.0.0.1", port=port)
    with pytest.raises(StartError) as caught:
        opened_at(place, meet_timeout=0.3)
    assert str(caught.value) == f"ranks 1, 2 did not come to 127.0.0.1 port {port} in 0.3 s"
    # A launcher's own process answers there.
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    place = Place(share=Share(rank=1, ranks=2), host="127.0.0.1", port=store.port, served=True)
    with pytest.raises(StartError) as caught:
        opened_at(place, meet_timeout=0.3)
    assert str(caught.value) == f"rank 0 did not come to 127.0.0.1 port {store.port} in 0.3 s"


def test_ranks_that_start_anew_at_the_same_place_meet_nothing_of_those_before() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)

    def met(rank: int) -> dist.Store:
        share = Share(rank=rank, ranks=2)
        place = Place(share=share, host="127.0.0.1", port=store.port, served=True, seconds=20)
        return gloo.met(place, lambda store, coming: store)

    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            # Rank 1 comes first: all that it finds is of the start before.
            coming_first = pool.submit(met, 1)
            time.sleep(0.1)
            both = met(0), coming_first.result()
        assert [one.check(["said"]) for one in both] == [False, False]
        both[0].set("said", "1")
        both[1].wait(["said"], timedelta(seconds=20))


# For a forward of ranks that are ready.
SOON = timedelta(seconds=0.2)


def stopping(place: Place) -> str:
    """What a rank is told while it waits for the others, of whom one is stopped."""
    coming.BEAT_SECONDS, coming.SILENT_SECONDS, gloo.FORWARD = 0.1, 1.0, SOON
    told = queue.Queue[str]()
    group = gloo.connect(replace(place, lost=told.put))

    def waits(call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except RankGone as error:
            told.put(str(error))

    # Both are in the library, as most of a load.
    for call in ((group.exchange, b""), (group.gather, torch.ones(2))):
        threading.Thread(target=waits, args=call, daemon=True).start()
    if place.share.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return told.get(timeout=20)


def test_a_process_that_is_stopped_while_it_loads_is_told_to_all_others_by_its_number() -> None:
    words = "rank 1 has been silent for 1 s before all were ready"
    assert on_ranks(3, stopping, killed=(1,)) == [words, None, words]


def dying(place: Place) -> str:
    """What a rank is told in a call that waits without end for the others, of whom one is killed:
    as on a GPU, of another host."""
    coming.GONE_SECONDS = 0.3
    told = queue.Queue[str]()
    store = gloo.met(replace(place, lost=told.put), lambda store, coming: store)
    threading.Thread(target=store.wait, args=(["nothing"],), daemon=True).start()
    if place.share.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return told.get(timeout=20)


def test_a_process_that_dies_while_it_loads_is_told_to_those_who_would_wait_for_it() -> None:
    words = "rank 1 ended before all were ready"
    assert on_ranks(3, dying, killed=(1,)) == [words, None, words]


def alone(place: Place) -> float:
    """How long a forward of ranks that are ready waits for one that does not make it."""
    gloo.FORWARD = SOON
    group = gloo.connect(place)
    group.exchange(b"")
    group.coming.hand_over()
    began = time.monotonic()
    if place.share.rank == 0:
        with pytest.raises(RankGone):
            group.gather(torch.ones(2))
    took = time.monotonic() - began
    group.exchange(b"")
    return took


def test_a_forward_of_ranks_that_are_ready_does_not_wait_as_long_as_a_load() -> None:
    assert on_ranks(2, alone)[0] < 5


def told_to_all(place: Place) -> list[bytes]:
    group, texts = gloo.connect(place), (b"", b"ab", b"abc")
    found = group.exchange(texts[place.share.rank])
    assert group.exchange(b"") == [b""] * 3
    return found


def test_texts_of_any_lengths_are_told_to_all_ranks() -> None:
    assert on_ranks(3, told_to_all) == [[b"", b"ab", b"abc"]] * 3
