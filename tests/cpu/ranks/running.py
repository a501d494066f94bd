"""Processes that are ranks, forked from one that has imported torch and started no threads."""

from __future__ import annotations

import multiprocessing
import socket
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tensorfold.backends.cpu_reference import backend as cpu_reference
from tensorfold.core.backend_api import EngineOrder, Place
from tensorfold.core.engine import open_engine
from tensorfold.core.engine.index_split import IndexSplit
from tensorfold.core.engine.ranks import follow, following, leading
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Engine
from tensorfold.core.family_api import Family
from tensorfold.core.settings import read
from tensorfold.core.share import Share
from tests.cpu.driving import CKPT, FAMILY

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.cpu.ranks.running"])
SIZES = {"lanes": 8, "context": 320, "chunk_rows": 320, "window_rows": 8, "threads": 1}
SIZES |= {"drafts": 0, "copies": False}
Work = Callable[..., Any]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def on_ranks(
    count: int, work: Work, *args: Any, seconds: float = 100, killed: Sequence[int] = ()
) -> list[Any]:
    """What `work(place, *args)` gives on each of `count` ranks; what it raises is an error here.
    Ranks that are `killed` in the middle of it give none."""
    port = free_port()
    children, pipes = [], []
    for rank in range(count):
        share = Share(rank=rank, ranks=count)
        place = None
        if count > 1:
            place = Place(share=share, host="127.0.0.1", port=port, local=rank)
        ours, theirs = FORKING.Pipe()
        child = FORKING.Process(target=run, args=(theirs, work, place, args), daemon=True)
        child.start()
        theirs.close()
        children.append(child)
        pipes.append(ours)
    found = []
    try:
        for rank, pipe in enumerate(pipes):
            if rank in killed:
                found.append(None)
                continue
            assert pipe.poll(seconds), f"rank {rank} of {count} said nothing in {seconds} s"
            held, said = pipe.recv()
            assert held, f"rank {rank} of {count}: {said}"
            found.append(said)
    finally:
        for rank, child in enumerate(children):
            child.join(5 if len(found) == count and rank not in killed else 0)
            child.kill()
            child.join()
    return found


def run(pipe: Connection, work: Work, place: Place | None, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    # Rounds are not timed: where nothing is known of costs, every guess gets its row.
    open_engine.time_rounds = lambda *given: None  # type: ignore[assignment]
    try:
        pipe.send((True, work(place, *args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def led(place: Place | None, engine: TorchEngine, work: Callable[[Engine], Any]) -> Any:
    """What work on rank 0's engine gives while the other ranks make its calls, who give none."""
    if place is None:
        return work(engine)
    if place.share.rank == 0:
        first = leading(engine, IndexSplit())
        try:
            return work(first)
        finally:
            first.shutdown()
    lost: list[str] = []
    link = following(engine, lost.append)
    follow(engine, link)
    link.thread.join()
    assert lost == [], lost
    return None


def opened_at(
    place: Place | None, folder: Path = CKPT, family: Family = FAMILY, **flags: Any
) -> TorchEngine:
    settings = read(SIZES | flags, {})
    return cpu_reference.open_engine(
        EngineOrder(settings=settings, folder=folder, family=family, place=place)
    )
