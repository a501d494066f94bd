"""`latent_attention`: `attend` over listed tokens of paged latents."""

from __future__ import annotations

from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.attend import LONG, Keys, attend


def latent_attention(
    q_RHC: Tensor,
    latents_SC: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    list_RK: Tensor,
    page: int,
    scale: float,
) -> Tensor:
    # No window: empty lists of rows of an empty ring.
    no_RW = list_RK[:, :0]
    keys = Keys(latents_SC, latents_SC, no_RW, latents_SC, list_RK, table_LP, lane_R, page)
    return attend(q_RHC, keys, None, scale, LONG)
