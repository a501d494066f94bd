"""The matrix products under the ops, in several forms.

`BY_FOUR` and `BY_EIGHT` call the BLAS library on rows padded to a multiple of 4 or 8: fast, and
row-exact on builds we know, which is checked at load. `TILES` calls it on one fixed shape at a
time, so that a row's bits cannot depend on its company whatever the library does: the fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 8


def pad_rows(x: Tensor, tile: int) -> Tensor:
    """Zero rows up to a multiple of `tile`, along the first axis."""
    missing = -x.shape[0] % tile
    return x if not missing else torch.cat([x, x.new_zeros(missing, *x.shape[1:])])


@dataclass(frozen=True, kw_only=True, slots=True)
class Products:
    """rows: [R, K] and [N, K] to [R, N]. batch: [B, M, K] and [B, K, N] to [B, M, N]. solve: unit
    lower triangular [B, T, T] and [B, T, N] to [B, T, N]. Ops pad rows to `tile` before `batch`."""

    label: str
    library: bool
    tile: int
    rows: Callable[[Tensor, Tensor], Tensor]
    batch: Callable[[Tensor, Tensor], Tensor]
    solve: Callable[[Tensor, Tensor], Tensor]


def library_rows(tile: int, x_RK: Tensor, w_NK: Tensor) -> Tensor:
    rows = x_RK.shape[0]
    if rows % tile == 0:
        return F.linear(x_RK, w_NK)
    return F.linear(pad_rows(x_RK, tile), w_NK)[:rows]


def library_solve(lower_BTT: Tensor, right_BTN: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(lower_BTT, right_BTN, upper=False, unitriangular=True)


def tiled_rows(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    rows = x_RK.shape[0]
    tiles = pad_rows(x_RK, TILE).split(TILE)
    return torch.cat([F.linear(tile, w_NK) for tile in tiles])[:rows]


def tiled_batch(a_BMK: Tensor, b_BKN: Tensor) -> Tensor:
    whole = []
    for a_MK, b_KN in zip(a_BMK, b_BKN, strict=True):
        tiles = pad_rows(a_MK, TILE).split(TILE)
        whole.append(torch.cat([torch.mm(tile, b_KN) for tile in tiles])[: a_MK.shape[0]])
    return torch.stack(whole) if whole else torch.bmm(a_BMK, b_BKN)


def tiled_solve(lower_BTT: Tensor, right_BTN: Tensor) -> Tensor:
    """Forward substitution, written out: row t subtracts the rows before it."""
    solved = right_BTN.clone()
    for row in range(1, right_BTN.shape[1]):
        before = tiled_batch(lower_BTT[:, row : row + 1, :row].contiguous(), solved[:, :row])
        solved[:, row] -= before[:, 0]
    return solved


def library(tile: int) -> Products:
    return Products(
        label=f"library products, rows padded to {tile}",
        library=True,
        tile=tile,
        rows=partial(library_rows, tile),
        batch=torch.bmm,
        solve=library_solve,
    )


BY_FOUR, BY_EIGHT = library(4), library(TILE)
TILES = Products(
    label="fixed tiles of 8 rows",
    library=False,
    tile=TILE,
    rows=tiled_rows,
    batch=tiled_batch,
    solve=tiled_solve,
)
# No promise: rows as they come. Only benchmarks use it, to tell what exactness costs.
UNPADDED = Products(
    label="library products, rows as they come",
    library=True,
    tile=1,
    rows=F.linear,
    batch=torch.bmm,
    solve=library_solve,
)
