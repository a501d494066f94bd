"""What an op is: a schema, a shape function, a reference written to be read, and cases.

`reference` is plain torch in any floating dtype, evaluated in float64 by the checks. `shape` gives
empty outputs of the right shapes for graph capture. A backend's kernel has the reference's
signature. Tensors named in `mutates` are written in place; all others are read only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Arguments of one call with many rows.

    `rows` names the arguments whose first axis is the row: the checks call the op on runs of these
    rows, and the outputs' first axis must follow them. An empty `rows` means the op's unit is not
    a row (it has a test of its own). `budget` is the largest |kernel - reference| allowed in
    float32, relative to the largest |reference|.
    """

    name: str
    args: Mapping[str, Any]
    rows: tuple[str, ...]
    budget: float = 2e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class OpSpec:
    """One op of the table. `wide` arguments come in float32 in an engine of any narrower format."""

    name: str
    schema: str
    reference: Callable[..., Any]
    shape: Callable[..., Any]
    cases: Callable[[torch.Generator], list[Case]]
    mutates: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()


def normal(generator: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=generator) * scale


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator)


def whole(generator: torch.Generator, low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=generator)
