"""`short_conv`: a row's taps over its predecessors, found through indices; then SiLU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows and columns of a program, timed on an H200: taps are read once for its rows.
FEW = 16
TILE_FEW, TILE_MANY = (1, 512), (16, 256)


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
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for t in tl.static_range(TAPS):
        place = tl.load(source + row * TAPS + t, mask=here, other=0)
        kept = place < num_history
        old_at = history + tl.where(kept, place, 0)[:, None] * C + column[None, :]
        new_at = u + tl.where(kept, 0, place - num_history)[:, None] * u_by_row + column[None, :]
        old_mask = (here & kept)[:, None] & inside[None, :]
        new_mask = (here & (place >= num_history))[:, None] & inside[None, :]
        old = tl.load(old_at, mask=old_mask, other=0.0).to(tl.float32)
        new = tl.load(new_at, mask=new_mask, other=0.0).to(tl.float32)
        tap = tl.load(taps + column * TAPS + t, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(kept[:, None], old, new) * tap[None, :]
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
