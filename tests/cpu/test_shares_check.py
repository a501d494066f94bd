"""The check of shares: what gives a rank's share other bits than the whole is seen, and told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.engine import open_engine, shares
from tensorfold.core.engine.optable import Call, Candidate
from tensorfold.core.family_api import CutProduct, Family
from tensorfold.core.ops.linear_parts import split
from tensorfold.core.share import SAME_BITS
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tensorfold.tools import widths
from tests.cpu.driving import opened

SMALL = {"lanes": 2, "context": 64, "chunk_rows": 64, "window_rows": 2}
COUNTS = (2, 4)
RELEASED = ((GLM53, widths.glm53()), (DSV41, widths.dsv41()))


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def columns(run: Callable[..., Any], product: CutProduct) -> bool:
    return shares.columns_keep_bits(product, (1, 8, 33), run, normal(0, 1), COUNTS)


PRODUCTS = (
    CutProduct("linear", 64, ((64, 8), (32, 1), (8, 4))),
    CutProduct("linear_heads", 16, ((64, 4),), heads=2),
)


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.op)
def test_columns_that_know_how_many_they_are_are_seen(product: CutProduct) -> None:
    run = candidates()[product.op][0].call
    assert columns(run, product)
    assert not columns(lambda x, w: run(x, w) * (1 + 1e-7 * (w.numel() % 7)), product)


def parts_call() -> Call:
    return Call("linear_parts", (normal(1, 9, 96), split(normal(2, 64, 96))))


@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_that_do_not_follow_the_tree_are_seen(ranks: int) -> None:
    run = candidates()["linear_parts"][0].call
    assert shares.shares_keep_bits(parts_call(), run, ranks, COUNTS)

    def in_order(x: Tensor, w: Tensor) -> Tensor:
        x_PRK = x.reshape(len(x), len(w), -1).transpose(0, 1)
        total = x_PRK[0] @ w[0]
        for part in range(1, len(w)):
            total = total + x_PRK[part] @ w[part]
        return total

    assert not shares.shares_keep_bits(parts_call(), in_order, ranks, COUNTS)


def test_heads_that_know_how_many_they_are_are_seen_in_what_is_written_too() -> None:
    def rows(*last: int) -> Tensor:
        return normal(3, 3, 2, 4, *last)

    args = (rows(8), rows(8), rows(8), -rows(8).abs(), rows().sigmoid(), torch.arange(3))
    call = Call("kda_steps", (*args, torch.tensor([1, 2, 2]), normal(4, 4, 4, 8, 8)))
    run = candidates()["kda_steps"][0].call
    assert shares.shares_keep_bits(call, run, 1, COUNTS)

    def writing(*given: Any) -> Tensor:
        found: Tensor = run(*given)
        given[-1].mul_(1 + 1e-6 * given[-1].shape[1])
        return found

    assert not shares.shares_keep_bits(call, writing, 1, COUNTS)


@pytest.mark.parametrize(("ranks", "held"), [(1, True), (2, True), (4, True), (8, False)])
def test_a_kernel_that_follows_the_number_of_columns_is_asked_for_each_rank(
    ranks: int, held: bool
) -> None:
    product = CutProduct("linear", 4096, ((2048, 8), (2048, 8)))
    candidate = Candidate(label="own", call=torch.mm, follows=lambda n, k: n < 1024)
    call = Call("linear", (torch.empty(1, device="meta"),))
    # Nobody records what a kernel of a device's own is called with.
    asked: tuple[Candidate, list[Call]] = (candidate, [])
    assert shares.shares_hold([product], ranks, "linear", *asked) is held
    assert shares.shares_hold([product], ranks, "linear_heads", *asked) is None
    one = Candidate(label="own", call=torch.mm)
    assert shares.shares_hold([product], ranks, "linear", one, [call]) is None


@pytest.mark.parametrize("ranks", SAME_BITS)
@pytest.mark.parametrize(("family", "raw"), RELEASED, ids=["glm53", "dsv41"])
def test_no_rank_of_a_released_model_holds_so_few_columns_that_a_gpu_sums_them_otherwise(
    family: Family, raw: dict[str, Any], ranks: int
) -> None:
    from tensorfold.backends.cuda_triton.kernels.linear import parts_of

    products = [one for one in family.cut_products(family.config(raw)) if one.op == "linear"]
    assert len(products) > 2
    for product in products:
        assert shares.columns_alike(product, ranks, parts_of), product


def refusing(*labels: str) -> Callable[..., bool | None]:
    def verdict(
        products: Sequence[CutProduct],
        ranks: int,
        name: str,
        candidate: Candidate,
        calls: Sequence[Call],
    ) -> bool | None:
        return (candidate.label not in labels) if name == "linear" else None

    return verdict


def test_a_form_whose_shares_differ_is_passed_over_and_the_last_one_tells_its_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, last = (form.label for form in candidates()["linear"])
    alike = opened(**SMALL).info
    assert alike.ops["linear"] == first
    monkeypatch.setattr(open_engine, "shares_hold", refusing(first))
    other = opened(**SMALL).info
    assert (other.ops["linear"], other.checks["ranks:linear"]) == (second, True)
    monkeypatch.setattr(open_engine, "shares_hold", refusing(first, second))
    fallback = opened(**SMALL).info
    assert (fallback.ops["linear"], fallback.checks["ranks:linear"]) == (last, True)
    monkeypatch.setattr(open_engine, "shares_hold", refusing(first, second, last))
    none = opened(**SMALL).info
    assert (none.ops["linear"], none.checks["ranks:linear"]) == (last, False)
    # Nothing but the number of ranks tells these two apart.
    assert none.identity != fallback.identity
