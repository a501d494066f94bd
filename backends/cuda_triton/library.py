"""Library forms of some ops, with no promise: benches tell by them what exactness costs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorfold.core.engine.optable import Candidate


def linear(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    dtype = torch.promote_types(x_RK.dtype, w_NK.dtype)
    return F.linear(x_RK.to(dtype), w_NK.to(dtype))


def linear_parts(x_RK: Tensor, w_PKN: Tensor) -> Tensor:
    """One plain sum over K."""
    dtype = torch.promote_types(x_RK.dtype, w_PKN.dtype)
    return torch.mm(x_RK.to(dtype), w_PKN.flatten(0, 1).to(dtype))


def linear_heads(x_RHK: Tensor, w_HKN: Tensor) -> Tensor:
    dtype = torch.promote_types(x_RHK.dtype, w_HKN.dtype)
    return torch.bmm(x_RHK.to(dtype).transpose(0, 1), w_HKN.to(dtype)).transpose(0, 1)


FORMS = {
    "linear": linear,
    "linear_parts": linear_parts,
    "linear_heads": linear_heads,
}


def candidates() -> dict[str, Candidate]:
    """By op."""
    return {
        name: Candidate(label="library", call=call, library=True) for name, call in FORMS.items()
    }
