"""What ranks hold of products and experts: put together, it has the bits of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine.optable import Call, Candidate
from tensorfold.core.engine.shares import held_columns, shares_keep_bits
from tensorfold.core.family_api import CutProduct, Family
from tensorfold.core.share import SAME_BITS, Share
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tensorfold.tools import widths

COUNTS = SAME_BITS[1:]
# Few rows, and more than one tile of each form has.
ROWS = (1, 8, 33, 64, 129, 500, 2048)
FORMATS = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
# Inner sizes of a part of eight, and columns: of glm53 and dsv41.
PARTS = [(1024, 4096), (256, 4096), (1536, 4096), (288, 5120), (1024, 5120), (128, 256)]
pytestmark = pytest.mark.timeout(200)


def candidate(name: str) -> Candidate:
    from tensorfold.backends.cuda_triton.table import candidates

    (found,) = candidates()[name]
    return found


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def products() -> list[CutProduct]:
    made: Sequence[tuple[Family, dict[str, object]]] = (
        (GLM53, widths.glm53()),
        (DSV41, widths.dsv41()),
    )
    return [
        product
        for family, raw in made
        for product in family.cut_products(family.config(raw))
        if product.op == "linear"
    ]


@pytest.mark.parametrize("product", products(), ids=lambda own: f"{own.inner}-{own.runs[0][0]}")
def test_columns_of_a_product_have_the_bits_that_the_whole_gives_them(product: CutProduct) -> None:
    linear = candidate("linear").call
    w_NK = drawn(sum(size for size, _ in product.runs), product.inner)
    for rows in ROWS:
        x_RK = drawn(rows, product.inner)
        whole = linear(x_RK, w_NK)
        for ranks in COUNTS:
            for rank in {0, ranks - 1}:
                places = held_columns(product, Share(rank=rank, ranks=ranks)).to("cuda")
                part = linear(x_RK, w_NK[places].contiguous())
                assert torch.equal(part, whole[:, places]), (rows, ranks, rank)


@FORMATS
@pytest.mark.parametrize(("inner", "columns"), PARTS)
def test_parts_of_a_sum_that_ranks_leave_in_float32_add_up_to_the_whole(
    inner: int, columns: int, dtype: torch.dtype
) -> None:
    op = candidate("linear_parts")
    w_PKN = drawn(8, inner, columns, dtype=dtype)
    for rows in ROWS if dtype == torch.bfloat16 else ROWS[:5]:
        call = Call("linear_parts", (drawn(rows, 8 * inner, dtype=dtype), w_PKN))
        assert shares_keep_bits(call, op.call, 1, COUNTS, op.unrounded), rows


@pytest.mark.parametrize("name", ["experts", "experts_weighted"])
def test_experts_of_ranks_in_float32_add_up_to_the_whole(name: str) -> None:
    op = candidate(name)
    experts, size, inner, top = 64, 1024, 512, 8
    gate_up_EDI = drawn(experts, size, 2 * inner, scale=size**-0.5)
    down_EID = drawn(experts, inner, size, scale=inner**-0.5)
    for rows in ROWS:
        scores = torch.rand(rows, experts, device="cuda")
        ids_RK = scores.topk(top).indices.sort().values
        weight_RK = torch.rand(rows, top, device="cuda")
        rest = (True,) if name == "experts_weighted" else ()
        args = (drawn(rows, size), ids_RK, weight_RK, gate_up_EDI, down_EID, 7.0, *rest, 0, 8)
        assert shares_keep_bits(Call(name, args), op.call, 1, COUNTS, op.unrounded), rows
