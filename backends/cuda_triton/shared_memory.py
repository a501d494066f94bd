"""Memory that all ranks of one host write into one another's: sums of few rows in one kernel.

What a device or a driver cannot do, and what does not add right at start, is left to NCCL.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import exchange
from tensorfold.core.share import Share

NAME = "tensorfold"
GROUP: Any = NAME
CHECK_SECONDS = 20.0


class SharedMemory:
    """One rank's buffer and flags, with the addresses of everyone's."""

    def __init__(self, store: dist.Store, share: Share, device: torch.device) -> None:
        # Not in every build of torch.
        from torch._C import _distributed_c10d as c10d

        words, flags = exchange.buffer_words(share.ranks)
        self.rank, self.device = share.rank, device
        # Ranks meet under a name.
        self.members = dist.ProcessGroup(store, share.rank, share.ranks)
        c10d._register_process_group(GROUP, self.members)
        memory: Any = c10d._SymmetricMemory
        own = memory.empty_strided_p2p((words + flags,), (1,), torch.float32, device, NAME)
        own.zero_()
        torch.cuda.synchronize(device)
        self.own = own
        self.handle = memory.rendezvous(own, NAME)
        addresses = torch.tensor(self.handle.buffer_ptrs, dtype=torch.int64)
        self.buffers = addresses.to(device)
        self.flags = (addresses + 4 * words).to(device)
        # Written without the driver, which may wait for a device that waits for it to be written.
        self.gone = torch.zeros(1, dtype=torch.int32).pin_memory()
        self.gone_at = torch.tensor([self.gone.data_ptr()], device=device)
        self.turns = torch.zeros(exchange.PROGRAMS, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)

    def total(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """The tree of every rank's part, of which `exchange.fits` holds."""
        return exchange.total(
            part, dtype, self.buffers, self.flags, self.gone_at, self.turns, self.rank
        )

    def let_go(self) -> None:
        """End every wait, now and from now on: what is added then is nothing."""
        self.gone.fill_(1)

    def waited(self) -> bool:
        """Wait for what is enqueued, not for ever; false where a rank was not heard."""
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self.device))
        last = time.monotonic() + CHECK_SECONDS
        while not done.query():
            if time.monotonic() > last:
                self.let_go()
                done.synchronize()
                return False
        return True
