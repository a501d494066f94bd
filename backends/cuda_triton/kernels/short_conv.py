"""`short_conv`: a row's taps over its predecessors, found through indices; then SiLU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024


@triton.jit
def convolve(
    u,
    history,
    source,
    taps,
    out,
    C,
    u_by_row,
    num_history,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < C
    total = tl.zeros((COLUMNS,), tl.float32)
    for t in tl.static_range(TAPS):
        place = tl.load(source + row * TAPS + t)
        kept = place < num_history
        old_at = history + tl.where(kept, place, 0) * C + column
        new_at = u + tl.where(kept, 0, place - num_history) * u_by_row + column
        old = tl.load(old_at, mask=inside & kept, other=0.0).to(tl.float32)
        new = tl.load(new_at, mask=inside & (place >= num_history), other=0.0).to(tl.float32)
        tap = tl.load(taps + column * TAPS + t, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(kept, old, new) * tap
    total = total / (1 + tl.exp(-total))
    tl.store(out + row * C + column, total.to(out.dtype.element_ty), mask=inside)


def short_conv(u_RC: Tensor, history_LHC: Tensor, source_RT: Tensor, taps_CT: Tensor) -> Tensor:
    if u_RC.stride(1) != 1:
        u_RC = u_RC.contiguous()
    rows, channels = u_RC.shape
    out_RC = torch.empty(u_RC.shape, dtype=u_RC.dtype, device=u_RC.device)
    if rows:
        columns = min(COLUMNS, triton.next_power_of_2(channels))
        convolve[(rows, triton.cdiv(channels, columns))](
            u_RC,
            history_LHC.contiguous(),
            source_RT.contiguous(),
            taps_CT.contiguous(),
            out_RC,
            channels,
            u_RC.stride(0),
            history_LHC.shape[0] * history_LHC.shape[1],
            TAPS=taps_CT.shape[1],
            COLUMNS=columns,
            num_warps=4,
        )
    return out_RC
