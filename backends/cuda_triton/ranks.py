"""Ranks that have a GPU each: forwards exchange over NCCL or shared memory, the rest over gloo.

Sums are gathered in rank order and added here, in float32: NCCL's own sums follow its choice of a
way through the ranks.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import triton
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import exchange
from tensorfold.backends.cuda_triton.kernels.products import add_parts
from tensorfold.backends.cuda_triton.shared_memory import SharedMemory
from tensorfold.core.backend_api import Place
from tensorfold.core.engine import gloo, meeting
from tensorfold.core.engine.coming import Coming
from tensorfold.core.errors import RankGone

# Read when the libraries start. Multicast of NVLink adds in an order of its own, and none is
# wanted; who is lost is told by the ranks' own links, with the reason, and not by ending a process.
LIBRARIES = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
BLOCK = 1024
# For ranks that have met to share memory.
MEET = timedelta(seconds=60)
# For a call of the library that has begun to enqueue what it does.
ASKED_SECONDS = 0.1
LOG = logging.getLogger("tensorfold.ranks")
# Numbers of values of the sums that shared memory is tried on at start, three times each.
TRIED = (1, 4096, 5000, exchange.PROGRAMS * exchange.BLOCK)


def sum_of(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Parts [ranks, ...] added in the tree, and rounded to `dtype`."""
    found = parts.new_empty(parts.shape[1:], dtype=dtype)
    size = found.numel()
    if size:
        grid = (triton.cdiv(size, BLOCK),)
        add_parts[grid](parts, found, size, P=len(parts), THIRDS=False, BLOCK=BLOCK)
    return found


class NcclGroup:
    """A `group.Group` on one GPU, whose calls are enqueued on the current stream."""

    def __init__(
        self, store: dist.Store, coming: Coming, place: Place, device: torch.device
    ) -> None:
        self.share, self.coming = place.share, coming
        self.gone = False
        ranks, rank = place.share.ranks, place.share.rank
        started = dist.PrefixStore("start", store)
        self.start = gloo.process_group(started, place.share, place.host, gloo.START)
        # Not in every build of torch.
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = gloo.START
        self.forward = nccl(dist.PrefixStore("nccl", store), rank, ranks, options)
        self.forward.eager_connect_single_device(device)
        self.now: Any = c10d.AllgatherOptions()
        # On the stream of what comes before and after, with nothing to wait for.
        self.now.asyncOp = False
        self.memory = self.shared_memory(dist.PrefixStore("memory", store), device)
        self.checks: Mapping[str, bool | None] = {"shared memory": self.memory is not None}

    def shared_memory(self, store: dist.Store, device: torch.device) -> SharedMemory | None:
        """Memory that all ranks share; none where one of them cannot, or it adds wrong."""
        found = None
        if self.on_one_host():
            # All ranks are here by now.
            store.set_timeout(MEET)
            try:
                found = SharedMemory(store, self.share, device)
            except (RuntimeError, ImportError, AttributeError) as error:
                LOG.warning("no memory is shared with other ranks: %s", gloo.first_line(error))
            finally:
                store.set_timeout(gloo.START)
        if not meeting.all_hold(self, found is not None):
            return None
        assert found is not None
        return found if meeting.all_hold(self, self.adds_right(found, device)) else None

    def on_one_host(self) -> bool:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return len(set(self.exchange(file.read()))) == 1

    def adds_right(self, memory: SharedMemory, device: torch.device) -> bool:
        generator, right = torch.Generator(device).manual_seed(self.share.rank), True
        for size in TRIED * 3:
            part = torch.randn(size, device=device, generator=generator)
            found = memory.total(part, torch.float32)
            heard = memory.waited()
            # All ranks try all sizes, whatever one of them finds.
            right &= torch.equal(found, self.added(part, torch.float32)) and heard
        return right

    def gather(self, part: Tensor) -> Tensor:
        if self.gone:
            # What aborts may hold the library for as long as a captured graph is there.
            raise RankGone("the other ranks are not waited for any more")
        found = part.new_empty(self.share.ranks, *part.shape)
        if part.numel():
            self.forward._allgather_base(found, part.contiguous(), self.now)
        return found

    def total(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        if self.memory is not None and exchange.fits(part):
            return self.memory.total(part, dtype)
        return self.added(part, dtype)

    def added(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """`total` over NCCL."""
        return sum_of(self.gather(part), dtype)

    def exchange(self, told: bytes) -> list[bytes]:
        try:
            return gloo.exchanged(self.start, self.share.ranks, told)
        except RankGone as error:
            raise self.coming.blamed(error) from None

    def abort(self) -> None:
        self.gone = True
        if self.memory is not None:
            self.memory.let_go()
        # Whoever was about to ask the library something has done so.
        time.sleep(ASKED_SECONDS)
        self.forward.abort()


def connect(device: torch.device, place: Place) -> NcclGroup:
    """Meet the other ranks. Raises `StartError` where they do not come."""
    os.environ.update(LIBRARIES)
    return gloo.met(place, partial(NcclGroup, place=place, device=device))
