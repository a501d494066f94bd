"""What is computed in float32 whatever format an engine's rows and weights have."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for a narrower format, else the format itself."""
    return torch.float32 if torch.finfo(dtype).bits < 32 else dtype


def wide(x: Tensor) -> Tensor:
    """x in float32 where its format is narrower; itself otherwise."""
    return x.to(wide_dtype(x.dtype))
