"""The load-time check for promise 6: has a rank's share of a call the bits of the whole call?

Heads, experts and parts of a recorded call are cut as ranks cut them, after a share has been
repeated to the size of the whole; products whose columns ranks cut are made up at their real sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensorfold.core.engine.checks import outputs
from tensorfold.core.engine.optable import Call, Candidate
from tensorfold.core.family_api import CutProduct
from tensorfold.core.ops.linear_parts import tree
from tensorfold.core.share import SAME_BITS, Share

Run = Callable[..., Any]


class Cut(NamedTuple):
    """Which axis of which argument is cut, and the outputs' axis; none where outputs are sums.

    `written` is the argument that an op writes besides its outputs.
    """

    axes: Mapping[int, int]
    out: int | None
    written: int | None = None


CUTS: Mapping[str, Cut] = {
    "linear_parts": Cut({0: 1, 1: 0}, None),
    "linear_heads": Cut({0: 1, 1: 0}, 1),
    "short_conv": Cut({0: 1, 1: 2, 3: 0}, 1),
    "kda_steps": Cut({0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 7: 1}, 2, written=7),
    "kda_blocks": Cut({0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 7: 1}, 1, written=7),
    "latent_attention": Cut({0: 1}, 1),
    "sink_attention": Cut({0: 1, 6: 0}, 1),
    "experts": Cut({3: 0, 4: 0}, None),
    "experts_weighted": Cut({3: 0, 4: 0}, None),
}
# Of these ops the last two arguments say which experts are held: the first, and in how many ranges.
EXPERTS = ("experts", "experts_weighted")


def shares_hold(
    products: Sequence[CutProduct],
    ranks: int,
    name: str,
    candidate: Candidate,
    calls: Sequence[Call],
) -> bool | None:
    """Whether a candidate gives shares the whole's bits; none where ranks cut nothing of its op.

    A kernel of a device's own has one arithmetic for all shapes, or tells what of a weight's shape
    it follows; on a CPU every form rests on library products, fixed tiles too.
    """
    own_products = [product for product in products if product.op == name]
    if candidate.follows is not None:
        alike = [columns_alike(product, ranks, candidate.follows) for product in own_products]
        return all(alike) if alike else None
    if not candidate.library and calls[0].args[0].device.type != "cpu":
        return None
    counts = counts_of(products)
    if not products or not (own_products or name in CUTS):
        return None
    rows = sorted({call.args[0].shape[0] for call in calls})
    return all(
        columns_keep_bits(product, rows, candidate.call, calls[0].args[0], counts)
        for product in own_products
    ) and (
        name not in CUTS
        or ranks not in SAME_BITS
        or all(
            shares_keep_bits(call, candidate.call, ranks, counts, candidate.unrounded)
            for call in calls
        )
    )


def counts_of(products: Sequence[CutProduct]) -> list[int]:
    """The counts of ranks that a model with these products can be cut for."""
    cuts = [cut for product in products for _, cut in product.runs if cut > 1]
    return [count for count in SAME_BITS[1:] if count <= min(cuts, default=1)]


def shares_keep_bits(
    call: Call, run: Run, ranks: int, counts: Sequence[int], unrounded: Run | None = None
) -> bool:
    """Whether a call's shares for each of `counts`, put together, are the whole of it.

    The call is a share of one of `ranks` ranks.
    """
    cut = CUTS[call.name]
    # A rank's part of a sum is rounded when the whole is there.
    of_share = run if cut.out is not None else unrounded or run
    whole = [
        torch.cat([arg] * ranks, cut.axes[place]) if place in cut.axes else arg
        for place, arg in enumerate(call.args)
    ]
    held = 0
    if call.name in EXPERTS:
        held = whole[3].shape[0]
        whole[-2:] = [0, call.args[-1] * ranks]
    wanted = given(cut, run, with_own(whole, cut.written))
    unit, axis = (1, 0) if call.name == "linear_parts" else next(iter(cut.axes.items()))
    size = whole[-1] if call.name in EXPERTS else whole[unit].shape[axis]
    for count in counts:
        if size % count:
            continue
        found = []
        for rank in range(count):
            share = Share(rank=rank, ranks=count)
            args = [
                narrowed(arg, cut.axes[place], share) if place in cut.axes else arg
                for place, arg in enumerate(whole)
            ]
            args = with_own(args, cut.written)
            if call.name in EXPERTS:
                args[-2:] = [held * rank // count, size // count]
            found.append(given(cut, of_share, args))
        if not same(found, wanted, cut):
            return False
    return True


def given(cut: Cut, run: Run, args: list[Any]) -> tuple[Tensor, ...]:
    """An op's outputs, and what it wrote."""
    found = outputs(run(*args))
    return found if cut.written is None else (*found, args[cut.written])


def with_own(args: Sequence[Any], written: int | None) -> list[Any]:
    """The arguments, with a copy of the one that is written."""
    return [arg.clone() if place == written else arg for place, arg in enumerate(args)]


def narrowed(arg: Tensor, axis: int, share: Share) -> Tensor:
    first, last = share.run(arg.shape[axis])
    return arg.narrow(axis, first, last - first).contiguous()


def same(found: Sequence[Sequence[Tensor]], wanted: Sequence[Tensor], cut: Cut) -> bool:
    for place, (parts, whole) in enumerate(zip(zip(*found, strict=True), wanted, strict=True)):
        if cut.out is None:
            joined = tree(torch.stack(parts)).to(whole.dtype)
        else:
            axis = cut.out if place == 0 or cut.written is None else cut.axes[cut.written]
            joined = torch.cat(parts, axis)
        if not torch.equal(joined, whole):
            return False
    return True


def columns_keep_bits(
    product: CutProduct, rows: Sequence[int], run: Run, like: Tensor, counts: Sequence[int]
) -> bool:
    """Whether each rank's columns of a product, at these numbers of rows, are the whole's."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(like)

    heads, inner = product.heads, product.inner
    columns = sum(size for size, _ in product.runs)
    w_HNK = drawn(heads, columns, inner)
    for count in rows:
        x_RHK = drawn(count, heads, inner)
        whole = columns_of(product, x_RHK, w_HNK, run)
        for ranks in counts:
            for rank in range(ranks):
                places = held_columns(product, Share(rank=rank, ranks=ranks)).to(like.device)
                part = columns_of(product, x_RHK, w_HNK[:, places].contiguous(), run)
                if not torch.equal(part, whole[..., places]):
                    return False
    return True


def columns_alike(product: CutProduct, ranks: int, follows: Callable[[int, int], object]) -> bool:
    """Whether a kernel treats each rank's columns of a product as it does the whole's."""
    shares = [Share(rank=rank, ranks=ranks) for rank in range(ranks)]
    held = [len(held_columns(product, share)) for share in (Share(), *shares)]
    return len({follows(columns, product.inner) for columns in held}) == 1


def columns_of(product: CutProduct, x_RHK: Tensor, w_HNK: Tensor, run: Run) -> Tensor:
    found: Tensor
    if product.op == "linear":
        found = run(x_RHK[:, 0].contiguous(), w_HNK[0])
    else:
        assert product.op == "linear_heads", product
        found = run(x_RHK, w_HNK.transpose(1, 2).contiguous())
    return found


def held_columns(product: CutProduct, share: Share) -> Tensor:
    """Which columns a rank holds, in the order in which it holds them."""
    found, start = [], 0
    for size, cut in product.runs:
        first, last = share.run(cut) if cut > 1 else (0, cut)
        found.append(torch.arange(start + first * size // cut, start + last * size // cut))
        start += size
    return torch.cat(found)
