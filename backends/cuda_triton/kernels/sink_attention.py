"""`sink_attention`: `attend` over a window of recent rows and listed rows of a memory."""

from __future__ import annotations

from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.attend import SHORT, Keys, attend


def sink_attention(
    q_RHC: Tensor,
    ring_SC: Tensor,
    new_TC: Tensor,
    window_RW: Tensor,
    memory_SC: Tensor,
    list_RK: Tensor,
    sink_H: Tensor,
    scale: float,
) -> Tensor:
    # No pages: the lists name rows themselves.
    keys = Keys(ring_SC, new_TC, window_RW, memory_SC, list_RK, list_RK, window_RW, 0)
    return attend(q_RHC, keys, sink_H, scale, SHORT)
