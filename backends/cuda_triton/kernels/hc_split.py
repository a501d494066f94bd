"""`hc_split`: `hc_mix`'s kernels with the collapse in the second launch."""

from __future__ import annotations

from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.hc_mix import mixed


def hc_split(
    x_RND: Tensor,
    fn_MF: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return mixed(x_RND, fn_MF, base_M, scale_3, norm_eps, eps, iterations, True)
