"""Ranks of one engine: what they exchange in a forward, and the op table over it.

Every rank runs the same calls in the same order, each on its share. Sums are gathered in rank
order and added in `linear_parts`' tree, so that counts that divide eight give one rank's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from tensorfold.core.ops import Ops
from tensorfold.core.ops.linear_parts import tree
from tensorfold.core.share import Share


class Group(Protocol):
    """A rank's way to the others; any call may raise `errors.RankGone`."""

    share: Share

    def gather(self, part: Tensor) -> Tensor:
        """Equal shapes from every rank, in rank order: [...] to [ranks, ...]."""
        ...

    def exchange(self, told: bytes) -> list[bytes]:
        """What every rank tells, in rank order; outside forwards, with no haste."""
        ...


def ranked(ops: Ops, group: Group | None, vocab_size: int) -> Ops:
    """The table of a rank: sums over all ranks, and the columns of the vocabulary joined."""
    if group is None:
        return ops
    return replace(
        ops,
        linear_parts=summed(ops.linear_parts, group),
        experts=summed(ops.experts, group),
        experts_weighted=summed(ops.experts_weighted, group),
        join=joined(group, vocab_size),
        gather=group.gather,
    )


def summed(call: Callable[..., Tensor], group: Group) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        return tree(group.gather(call(*args)))

    return run


def joined(group: Group, vocab_size: int) -> Callable[[Tensor], Tensor]:
    ranks = group.share.ranks
    widths = [
        Share(rank=rank, ranks=ranks).size(vocab_size, "the vocabulary") for rank in range(ranks)
    ]
    widest = max(widths)

    def join(own_RV: Tensor) -> Tensor:
        missing = widest - own_RV.shape[1]
        if missing:
            own_RV = torch.cat([own_RV, own_RV.new_zeros(own_RV.shape[0], missing)], 1)
        return in_order(group.gather(own_RV), widths)

    return join


def in_order(parts_PRV: Tensor, widths: Sequence[int]) -> Tensor:
    return torch.cat([part[:, :width] for part, width in zip(parts_PRV, widths, strict=True)], 1)
