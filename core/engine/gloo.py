"""Ranks over torch.distributed's gloo: processes on CPUs, of one host or several."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from tensorfold.core.backend_api import Place
from tensorfold.core.engine.coming import Coming, await_listener, in_time, lead, missed, reach
from tensorfold.core.errors import RankGone, StartError
from tensorfold.core.ops.linear_parts import tree
from tensorfold.core.share import Share

Made = TypeVar("Made")

# Ranks load at their own pace; in a forward of ranks that are ready they do equal work.
START = timedelta(minutes=30)
FORWARD = timedelta(seconds=4)
LOOPBACK = "127.0.0.1"
# Of a store that others use, too.
LINK = "tensorfold/link"


class GlooGroup:
    """A `group.Group` over a store that all of the ranks reach."""

    def __init__(self, store: dist.Store, coming: Coming, place: Place) -> None:
        share, host = place.share, place.host
        self.share, self.coming = share, coming
        self.checks: Mapping[str, bool | None] = {}
        self.start = process_group(dist.PrefixStore("start", store), share, host, START)
        self.forward = process_group(dist.PrefixStore("forward", store), share, host, START)
        self.ready: Any = c10d.AllgatherOptions()
        self.ready.timeout = FORWARD

    def gather(self, part: Tensor) -> Tensor:
        # A load's forwards are compiled, checked and timed at each rank's own pace.
        options = self.ready if self.coming.over else c10d.AllgatherOptions()
        try:
            return gathered(self.forward, self.share.ranks, part, options)
        except RankGone as error:
            raise self.coming.blamed(error) from None

    def total(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        return tree(self.gather(part)).to(dtype)

    def exchange(self, told: bytes) -> list[bytes]:
        try:
            return exchanged(self.start, self.share.ranks, told)
        except RankGone as error:
            raise self.coming.blamed(error) from None

    def abort(self) -> None:
        # Forwards of ranks that are ready wait for no longer than their timeout.
        return None


def process_group(store: dist.Store, share: Share, host: str, timeout: timedelta) -> Any:
    # Its type stub lacks what a group of one's own needs.
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    if host == LOOPBACK:
        # Nobody outside this machine has to reach its ranks.
        options._devices = [gloo.create_device(hostname=LOOPBACK)]
    else:
        options._devices = [gloo.create_default_device()]
    options._timeout = timeout
    return gloo(store, share.rank, share.ranks, options)


def gathered(group: Any, ranks: int, part: Tensor, *options: Any) -> Tensor:
    # Written by a thread that knows nothing of inference mode.
    with torch.inference_mode(False):
        found = torch.empty(ranks, *part.shape, dtype=part.dtype)
    try:
        group.allgather([list(found.unbind())], [part.contiguous()], *options).wait()
    except RuntimeError as error:
        raise RankGone(first_line(error)) from None
    return found


def exchanged(group: Any, ranks: int, told: bytes) -> list[bytes]:
    """Texts of any lengths from every rank, in rank order."""
    sizes = gathered(group, ranks, torch.tensor([len(told)])).flatten().tolist()
    padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
    padded[: len(told)] = torch.tensor(bytearray(told), dtype=torch.uint8)
    found = gathered(group, ranks, padded)
    return [bytes(row[:size].numpy().tobytes()) for row, size in zip(found, sizes, strict=True)]


def connect(place: Place) -> GlooGroup:
    """Meet the other ranks. Raises `StartError` where they do not come."""
    return met(place, partial(GlooGroup, place=place))


def met(place: Place, group: Callable[[dist.Store, Coming], Made]) -> Made:
    """A group over the store of a place, of ranks that have come and are heard.

    Raises `StartError` where they do not come.
    """
    last = time.monotonic() + place.seconds
    first = place.share.rank == 0
    if place.served or not first:
        await_listener(place)

    def left() -> timedelta:
        return timedelta(seconds=max(0.1, last - time.monotonic()))

    def reached() -> dist.TCPStore:
        return dist.TCPStore(
            place.host,
            place.port,
            place.share.ranks,
            first and not place.served,
            left(),
            wait_for_workers=False,
            master_listen_fd=place.listener,
        )

    try:
        store = in_time(reached, place, last)
        store.set_timeout(START)
        if first:
            coming = lead(place, lambda said: store.set(LINK, said.decode()))
        else:
            try:
                store.wait([LINK], left())
            except dist.DistStoreError:
                raise missed([0], place) from None
            coming = reach(place, lambda: bytes(store.get(LINK)), last)
        # Keys of a start before this one may be there still.
        return group(dist.PrefixStore(coming.word.hex(), store), coming)
    except RuntimeError as error:
        raise StartError(
            f"rank {place.share.rank} of {place.share.ranks} did not meet the others at "
            f"{place.host} port {place.port}: {first_line(error)}"
        ) from None


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
