"""Ranks that share one GPU, which NCCL refuses: what they exchange in a forward crosses the host.

All else is the backend's own: cuts, kernels, sums in float32 and how they are added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from tensorfold.backends.cuda_triton.backend import device_of, runner
from tensorfold.backends.cuda_triton.ranks import sum_of
from tensorfold.core.backend_api import EngineOrder, Place
from tensorfold.core.engine import gloo
from tensorfold.core.engine.coming import Coming
from tensorfold.core.engine.open_engine import open_torch_engine
from tensorfold.core.engine.torch_engine import TorchEngine


class Staged:
    """A `group.Group` whose gathers wait for the device: no round of it can be captured."""

    def __init__(
        self, store: dist.Store, coming: Coming, place: Place, device: torch.device
    ) -> None:
        self.share, self.device, self.coming = place.share, device, coming
        self.checks: Mapping[str, bool | None] = {}
        self.start, self.forward = (
            gloo.process_group(dist.PrefixStore(name, store), place.share, place.host, gloo.START)
            for name in ("start", "forward")
        )

    def gather(self, part: Tensor) -> Tensor:
        raw = part.contiguous().view(torch.uint8).cpu()
        found = gloo.gathered(self.forward, self.share.ranks, raw).to(self.device)
        return found.view(part.dtype)

    def total(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        return sum_of(self.gather(part), dtype)

    def exchange(self, told: bytes) -> list[bytes]:
        return gloo.exchanged(self.start, self.share.ranks, told)

    def abort(self) -> None:
        raise AssertionError("no rank is lost here")


def opened_beside(order: EngineOrder) -> TorchEngine:
    """A rank of several on the first GPU, or the one that there is; rounds are not captured."""
    place = order.place and replace(order.place, local=0)
    device = device_of(replace(order, place=place))
    return open_torch_engine(
        replace(order, place=place),
        replace(
            device,
            connect=lambda place: gloo.met(
                place, lambda store, coming: Staged(store, coming, place, device.device)
            ),
            runner=lambda rounds: runner(device.device, rounds._replace(captured=False)),
        ),
    )
