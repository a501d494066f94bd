"""At the releases' widths a row has one result: whatever its company, and whatever tile runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine.checks import ROW_ARGUMENTS, outputs
from tensorfold.tools.operands import Maker, Point
from tensorfold.tools.ops_at_width import points

pytest.importorskip("triton")

from tensorfold.backends.cuda_triton.kernels import experts, many, products
from tensorfold.backends.cuda_triton.kernels.tiles import Tile, apart, joined
from tensorfold.backends.cuda_triton.table import BY_ROW, BY_VOCABULARY

DEVICE = torch.device("cuda", 0)
COUNTS = (*range(1, 71), 128, 500, 2048, 8192)
CALLS = BY_ROW | BY_VOCABULARY
POINTS = [point for point in points() if point.op in CALLS]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield
    torch.cuda.empty_cache()


@pytest.fixture
def maker() -> Maker:
    generator = torch.Generator(DEVICE).manual_seed(5)
    return Maker(device=DEVICE, dtype=torch.bfloat16, generator=generator)


def part(point: Point, args: tuple[Any, ...], first: int, count: int) -> list[Any]:
    found = list(args)
    for place in ROW_ARGUMENTS[point.op]:
        found[place] = args[place][first : first + count].contiguous()
    return found


# Of experts there is room for one release's at a time.
ALONE = {True: [pytest.mark.xdist_group("experts")], False: []}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            point, marks=ALONE[point.op.startswith("experts")], id=f"{point.op} {point.label}"
        )
        for point in POINTS
    ],
)
def test_rows_have_the_bits_they_have_among_all(point: Point, maker: Maker) -> None:
    if point.op.startswith("experts") and torch.cuda.mem_get_info(DEVICE)[0] < 64e9:
        pytest.skip("the release's experts need 64 GB of GPU memory")
    most = min(8192, point.most)
    args = list(point.make(maker, most))
    if point.op == "short_conv":
        # A run of rows is a call of its own only if its sources lie in the history.
        args[2] = args[2] % args[1].shape[1]
    call = CALLS[point.op]
    whole = outputs(call(*args))
    for count in COUNTS:
        first = (7 * count) % 53 if (7 * count) % 53 + count <= most else 0
        if count <= most:
            found = outputs(call(*part(point, tuple(args), first, count)))
            for small, large in zip(found, whole, strict=True):
                assert torch.equal(small, large[first : first + count]), count


FEW = (
    Tile(16, 32, 128, 4, 6),
    Tile(16, 64, 64, 4, 6),
    Tile(16, 256, 32, 4, 4),
    Tile(32, 128, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(128, 128, 64, 8, 3),
)
MANY = (Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 4, 4), Tile(64, 128, 64, 4, 4))
MANY_PARTS = (
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 32, 8, 4),
    Tile(64, 128, 32, 4, 4),
)


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("by_k", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_tile_of_a_product_gives_the_same_bits(
    parts: int, by_k: bool, dtype: torch.dtype, maker: Maker
) -> None:
    x = maker.normal(200, 4096).to(dtype)
    flat = maker.normal(2048, 4096, scale=1 / 64).to(dtype)
    inner = 4096 // parts
    split = flat.view(2048, parts, inner).permute(1, 2, 0).contiguous()
    weight = apart(split) if by_k else joined(flat, parts)
    wanted = products.summed(x, weight, FEW[0])
    for tile in FEW[1:] if dtype == torch.bfloat16 else FEW[1:3]:
        assert torch.equal(products.summed(x, weight, tile), wanted), tile
    for tile in MANY if parts == 1 else MANY_PARTS:
        if dtype == torch.bfloat16:
            found = torch.full_like(wanted, float("nan"))
            many.run_many(x, weight, found, tile, False)
            assert torch.equal(found, wanted), tile


@pytest.mark.parametrize("rows", [1, 9, 64, 100])
@pytest.mark.parametrize("weighted", [False, True])
def test_experts_by_pick_and_by_group_give_the_same_bits(
    rows: int, weighted: bool, maker: Maker
) -> None:
    x = maker.normal(rows, 1024)
    ids, weight = maker.picks(rows, 32, 8), maker.uniform(rows, 8)
    gate_up = maker.normal(32, 1024, 1024, scale=1 / 32)
    down = maker.normal(32, 512, 1024, scale=1 / 22)
    results: list[Tensor] = []
    for few, tiles in (
        (True, None),
        (True, (Tile(16, 32, 128, 4, 4), Tile(16, 128, 64, 4, 4))),
        (False, None),
        (False, (Tile(64, 128, 64, 4, 3), Tile(64, 128, 64, 4, 4))),
    ):
        results.append(
            experts.run(x, ids, weight, gate_up, down, 10.0, 0, 8, weighted, False, tiles, few)
        )
    assert all(torch.equal(result, results[0]) for result in results)
