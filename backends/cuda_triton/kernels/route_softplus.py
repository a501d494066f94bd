"""`route_softplus`: `route`'s kernel with the other score."""

from __future__ import annotations

from torch import Tensor

from tensorfold.backends.cuda_triton.kernels.route import chosen


def route_softplus(
    logit_RE: Tensor, bias_E: Tensor, top: int, scale: float
) -> tuple[Tensor, Tensor]:
    return chosen(logit_RE, bias_E, top, scale, True, True)
