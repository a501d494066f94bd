"""Rotary positions on adjacent pairs of a head's last values (spec dsv41 2.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal


def reference(x: Tensor, cos_RP: Tensor, sin_RP: Tensor, back: bool) -> Tensor:
    """x [R, ..., D] with its last P pairs (a, b) turned to (a cos - b sin, a sin + b cos), or back.

    The angles are a row's. Pairs turn in the wider of the angles' format and x's, and come back
    in x's.
    """
    pairs = cos_RP.shape[-1]
    kept, turned = x.split([x.shape[-1] - 2 * pairs, 2 * pairs], -1)
    a, b = turned.unflatten(-1, (pairs, 2)).unbind(-1)
    shape = (x.shape[0], *[1] * (x.dim() - 2), pairs)
    cos, sin = cos_RP.view(shape), sin_RP.view(shape)
    sin = -sin if back else sin
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([kept, turned.to(x.dtype)], -1)


def shape(x: Tensor, cos_RP: Tensor, sin_RP: Tensor, back: bool) -> Tensor:
    return x.new_empty(x.shape)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for back, pairs, *size in (
        (False, 32, 8, 512),
        (True, 8, 3, 48),
        (False, 32, 128),
        (True, 32, 64),
    ):
        angle_RP = normal(generator, 328, pairs, scale=3.0)
        args = {
            "x": normal(generator, 328, *size),
            "cos_RP": torch.cos(angle_RP),
            "sin_RP": torch.sin(angle_RP),
            "back": back,
        }
        name = f"{'x'.join(map(str, size))} {'back' if back else 'on'}"
        found.append(Case(name=name, args=args, rows=("x", "cos_RP", "sin_RP")))
    return found


OP = OpSpec(
    name="rotate",
    schema="(Tensor x, Tensor cos, Tensor sin, bool back) -> Tensor",
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("cos_RP", "sin_RP"),
)
