"""Ranks of one engine: what they exchange in a forward, and the op table over it.

Every rank runs the same calls in the same order, each on its share. Sums are gathered in rank
order and added in `linear_parts`' tree, so that counts that divide eight give one rank's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from tensorfold.core.engine.coming import Coming
from tensorfold.core.ops import Ops
from tensorfold.core.share import Share


class Group(Protocol):
    """A rank's way to the others; any call may raise `errors.RankGone`, and before all are ready
    `errors.NotAllReady` with the number of a rank that has ended.

    `checks` are what was tried of it at start, by name.
    """

    share: Share
    checks: Mapping[str, bool | None]

    @property
    def coming(self) -> Coming | None:
        """What hears the ranks until all are ready; none where nobody is met."""
        ...

    def gather(self, part: Tensor) -> Tensor:
        """Equal shapes from every rank, in rank order: [...] to [ranks, ...]."""
        ...

    def total(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """The ranks' parts added in the tree, in their own format, and rounded to `dtype` once."""
        ...

    def exchange(self, told: bytes) -> list[bytes]:
        """What every rank tells, in rank order; outside forwards, with no haste."""
        ...

    def abort(self) -> None:
        """Have whatever waits for a rank that is gone end soon, with no result; from any thread,
        which it may keep."""
        ...


def share_of(group: Group | None) -> Share:
    """What this rank holds; all of it where there are no others."""
    return Share() if group is None else group.share


class Unheard:
    """A group that asks nobody, and whose results are zero: for rehearsals, which ranks may make
    at other times, or not all of them."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.coming: Coming | None = None
        self.checks: Mapping[str, bool | None] = {}

    def gather(self, part: Tensor) -> Tensor:
        return part.new_zeros(self.share.ranks, *part.shape)

    def total(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        return part.new_zeros(part.shape, dtype=dtype)

    def exchange(self, told: bytes) -> list[bytes]:
        raise AssertionError(told)

    def abort(self) -> None:
        raise AssertionError


def ranked(ops: Ops, group: Group | None, vocab_size: int, unrounded: Ops | None = None) -> Ops:
    """The table of a rank: sums over all ranks, and the columns of the vocabulary joined.

    `unrounded` is the same table with its sums in float32: one rank rounds a sum of all parts.
    """
    if group is None:
        return ops
    sums = unrounded or ops
    return replace(
        ops,
        linear_parts=summed(sums.linear_parts, group, product_type),
        experts=summed(sums.experts, group, row_type),
        experts_weighted=summed(sums.experts_weighted, group, row_type),
        join=joined(group, vocab_size),
        gather=group.gather,
    )


def product_type(x: Tensor, w: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, w.dtype)


def row_type(x: Tensor, *rest: Any) -> torch.dtype:
    return x.dtype


def summed(
    call: Callable[..., Tensor], group: Group, result_type: Callable[..., torch.dtype]
) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        return group.total(call(*args), result_type(*args))

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
