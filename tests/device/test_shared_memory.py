"""Memory that ranks share: what each adds is the tree of all parts, and a wait can be ended.

The ranks are processes of one GPU, which takes turns between them: slow, and the same protocol.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tensorfold.backends.cuda_triton.kernels import exchange
from tensorfold.core.backend_api import Place
from tensorfold.core.engine import gloo
from tensorfold.core.engine.coming import Coming
from tensorfold.core.ops.linear_parts import tree
from tests.cpu.ranks.running import on_ranks

SIZES = (1, 3, 1023, 1024, 1025, 4096, 5000, exchange.PROGRAMS * exchange.BLOCK)
pytestmark = pytest.mark.timeout(100)


def met(place: Place, work: Any) -> Any:
    """What work gives of the other ranks and of the memory shared with them, on the first GPU."""
    from tensorfold.backends.cuda_triton.shared_memory import SharedMemory
    from tests.device.one_gpu import Staged

    # Without it torch refuses two ranks of one GPU.
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)

    def both(store: dist.Store, coming: Coming) -> Any:
        group = Staged(store, coming, place, device)
        return work(group, SharedMemory(dist.PrefixStore("memory", store), place.share, device))

    return gloo.met(place, both)


def added(place: Place) -> list[tuple[int, str]]:
    """Sizes and formats whose sum is not the tree of all parts, each tried three times."""

    def work(group: Any, memory: Any) -> list[tuple[int, str]]:
        generator = torch.Generator("cuda").manual_seed(place.share.rank)
        wrong = []
        for _ in range(3):
            for size in SIZES:
                for dtype in (torch.float32, torch.bfloat16):
                    part = torch.randn(size, device="cuda", generator=generator)
                    found = memory.total(part, dtype)
                    heard = memory.waited()
                    if not heard or not torch.equal(found, tree(group.gather(part)).to(dtype)):
                        wrong.append((size, str(dtype)))
        group.exchange(b"done")
        return wrong

    found: list[tuple[int, str]] = met(place, work)
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_rank_adds_all_parts_in_the_tree(ranks: int) -> None:
    assert on_ranks(ranks, added, seconds=60) == [[]] * ranks


def let_go(place: Place) -> list[float]:
    """Rank 0 waits for a part that rank 1 never gives, and is let go after a second: how long it
    waited while the driver had a kernel to load, and how long the next wait is."""

    def work(group: Any, memory: Any) -> list[float]:
        seconds = []
        from tensorfold.backends.cuda_triton.ranks import sum_of

        if place.share.rank == 0:
            threading.Timer(1.0, memory.let_go).start()
            for _ in range(2):
                began = time.monotonic()
                memory.total(torch.ones(5000, device="cuda"), torch.float32)
                # This process has not run it yet.
                sum_of(torch.ones(2, 64, device="cuda"), torch.float32)
                torch.cuda.synchronize()
                seconds.append(time.monotonic() - began)
        group.exchange(b"done")
        return seconds

    found: list[float] = met(place, work)
    return found


def test_a_rank_that_waits_for_one_that_is_gone_is_let_go_now_and_later() -> None:
    first, later = on_ranks(2, let_go, seconds=60)[0]
    assert 0.5 < first < 10
    assert later < 1
