"""`short_conv`: a row's taps over its predecessors, found through indices; then SiLU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows and columns of a program, timed on an H200: taps are read once for its rows.
FEW = 16
TILE_FEW, TILE_MANY = (1, 512), (16, 256)


@triton.jit
def summed(
    u, history, source, taps, row, here, column, inside, C, u_by_row, num_history,
    TAPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """The taps' products, added in order; some sources are of the history only where KEPT."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for t in tl.static_range(TAPS):
        place = tl.load(source + row * TAPS + t, mask=here, other=0)
        kept = place < num_history
        at = u + tl.where(kept, 0, place - num_history)[:, None] * u_by_row + column[None, :]
        mask = (here & (place >= num_history))[:, None] & inside[None, :]
        value = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        if KEPT:
            old_at = history + tl.where(kept, place, 0)[:, None] * C + column[None, :]
            old_mask = (here & kept)[:, None] & inside[None, :]
            old = tl.load(old_at, mask=old_mask, other=0.0).to(tl.float32)
            value = tl.where(kept[:, None], old, value)
        tap = tl.load(taps + column * TAPS + t, mask=inside, other=0.0).to(tl.float32)
        total = tl.fma(value, tl.broadcast_to(tap[None, :], (ROWS, COLUMNS)), total)
    return total


@triton.jit(do_not_specialize=["num_rows"])
def convolve(
    u,
    history,
    source,
    taps,
    out,
    num_rows,
    C,
    u_by_row,
    num_history,
    TAPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    here, inside = row < num_rows, column < C
    if ROWS == 1:
        total = summed(
            u, history, source, taps, row, here, column, inside, C, u_by_row, num_history,
            TAPS, ROWS, COLUMNS, True,
        )  # fmt: skip
    else:
        # Few rows of a prompt reach into the history: tiles of the others do not look there.
        least = num_history
        for t in tl.static_range(TAPS):
            place = tl.load(source + row * TAPS + t, mask=here, other=num_history)
            least = tl.minimum(least, tl.min(place, 0))
        if least < num_history:
            total = summed(
                u, history, source, taps, row, here, column, inside, C, u_by_row, num_history,
                TAPS, ROWS, COLUMNS, True,
            )  # fmt: skip
        else:
            total = summed(
                u, history, source, taps, row, here, column, inside, C, u_by_row, num_history,
                TAPS, ROWS, COLUMNS, False,
            )  # fmt: skip
    total = total / (1 + tl.exp(-total))
    out_at = out + row[:, None] * C + column[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=here[:, None] & inside[None, :])


def short_conv(u_RC: Tensor, history_LHC: Tensor, source_RT: Tensor, taps_CT: Tensor) -> Tensor:
    if u_RC.stride(1) != 1:
        u_RC = u_RC.contiguous()
    num_rows, channels = u_RC.shape
    out_RC = torch.empty(u_RC.shape, dtype=u_RC.dtype, device=u_RC.device)
    if num_rows:
        rows, columns = TILE_FEW if num_rows <= FEW else TILE_MANY
        convolve[(triton.cdiv(channels, columns), triton.cdiv(num_rows, rows))](
            u_RC,
            history_LHC.contiguous(),
            source_RT.contiguous(),
            taps_CT.contiguous(),
            out_RC,
            num_rows,
            channels,
            u_RC.stride(0),
            history_LHC.shape[0] * history_LHC.shape[1],
            TAPS=taps_CT.shape[1],
            ROWS=rows,
            COLUMNS=columns,
            num_warps=4,
        )
    return out_RC
