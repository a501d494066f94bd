"""The ops' bench: what it measures against, and that it times nothing that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.engine.optable import Candidate
from tensorfold.core.ops import SPECS
from tensorfold.tools import bench_ops
from tensorfold.tools.bench_ops import Figure, Rates
from tensorfold.tools.operands import Maker, Point, moved
from tensorfold.tools.ops_at_width import experts, linear, parts, points

MAKER = Maker(
    device=torch.device("cpu"),
    dtype=torch.float32,
    generator=torch.Generator().manual_seed(0),
)
SMALL = linear("small", 24, 64)


def unsound(point: Point, call: Callable[..., Any]) -> str | None:
    with torch.inference_mode():
        return bench_ops.unsound(point, Candidate(label="mine", call=call), MAKER)


def exact(x: Tensor, w: Tensor) -> Tensor:
    return candidates()["linear"][-1].call(x, w)


def test_every_op_has_a_place_at_a_releases_width() -> None:
    assert {point.op for point in points()} == {spec.name for spec in SPECS}
    assert len({(point.op, point.label) for point in points()}) == len(list(points()))


def test_a_products_floor_is_its_operands_and_result_once() -> None:
    args = SMALL.make(MAKER, 3)
    assert moved(SMALL, args, (exact(*args),)) == 4 * (3 * 64 + 24 * 64 + 3 * 24)
    assert SMALL.flops(args) == 2 * 3 * 24 * 64


def test_experts_floor_counts_the_picked_ones_alone() -> None:
    point = experts("experts", "small", 16, 2, 32, 16)
    args = list(point.make(MAKER, 4))
    args[1] = torch.tensor([[3, 5], [3, 5], [3, 9], [3, 9]])
    out = torch.empty(4, 32)
    rows = 4 * (4 * 32 + 4 * 2 + 4 * 32) + 8 * 4 * 2
    assert moved(point, tuple(args), (out,)) == rows + 4 * 3 * (32 * 32 + 16 * 32)


def test_a_plain_sum_has_the_operands_of_the_one_in_parts() -> None:
    point = parts("small", 8, 32)
    assert point.plain is not None
    args = point.make(MAKER, 3)
    one = point.plain(args)
    assert one[1].shape == (1, 32, 8)
    call = candidates()["linear_parts"][-1].call
    assert torch.allclose(call(*one), call(*args), atol=1e-5)


def test_what_is_right_is_timed_and_what_is_wrong_is_told() -> None:
    assert unsound(SMALL, exact) is None
    why = unsound(SMALL, lambda x, w: exact(x, w) * 1.001)
    assert why is not None
    assert why.startswith("off by 1.0e-03")
    why = unsound(SMALL, lambda x, w: exact(x, w) + (len(x) > 8) * 1e-6)
    assert why == "a row's bits depend on its company"


def test_an_unsound_op_leaves_no_figure() -> None:
    bad = {"linear": [Candidate(label="bad", call=lambda x, w: exact(x, w) * 2)]}
    lines: list[str] = []
    rates = Rates(copy=1e12, matrix=1e14)
    assert bench_ops.bench(bad, MAKER, [SMALL], [1], rates, lines.append) == []
    assert lines[0].startswith("NOT TIMED linear small: off by 1.0e+00")


def test_figures_become_a_table_and_a_picture(tmp_path: Path) -> None:
    figures = [
        Figure(op="linear", label="a", rows=rows, ours=2.0, floor=1.0, peer=peer, plain=1.6)
        for rows, peer in ((1, 3.0), (8, None))
    ]
    shown = bench_ops.show(figures, Rates(copy=4e12, matrix=7e14), "a GPU")
    assert list(shown.columns[-1].cells) == ["+25.0 %", "+25.0 %"]
    assert list(shown.columns[6].cells) == ["3.0", ""]
    bench_ops.plot(figures, tmp_path / "ops.png", "a GPU")
    assert (tmp_path / "ops.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ops", "linear,warp"], "--ops names 'warp'"),
        (["--rows", "1,two"], "argument --rows: must be positive numbers with commas, not '1,two'"),
        (["--rows", "0"], "argument --rows: must be positive numbers with commas, not '0'"),
    ],
)
def test_a_mistake_is_told_by_flag_and_value(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_ops.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"bench_ops: {told}")
