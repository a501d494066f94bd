"""This backend's candidates for every op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorfold.backends.cuda_triton.kernels.linear import linear
from tensorfold.backends.cuda_triton.kernels.linear_heads import linear_heads
from tensorfold.backends.cuda_triton.kernels.linear_parts import linear_parts
from tensorfold.backends.cuda_triton.kernels.rms_norm import rms_norm
from tensorfold.core.engine.optable import Candidate, Candidates

Call = Callable[..., Any]

# Products, norms, streams, experts: each row by itself.
BY_ROW: dict[str, Call] = {
    "linear": linear,
    "linear_parts": linear_parts,
    "linear_heads": linear_heads,
    "rms_norm": rms_norm,
}
# Recurrences, attention and the indexes: rows that read what other rows left.
BY_MEMORY: dict[str, Call] = {}


def candidates() -> Candidates:
    """By op, in order of preference."""
    return {
        name: (Candidate(label="triton", call=call),) for name, call in (BY_ROW | BY_MEMORY).items()
    }
