"""Rotary positions on adjacent pairs of a head's last values (spec dsv41, 2.4)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.ops import Ops
from tensorfold.families.dsv41.config import Config, Yarn


class Turn(NamedTuple):
    """cos_RP and sin_RP of P pairs at each row's position."""

    cos_RP: Tensor
    sin_RP: Tensor

    def at(self, row_Q: Tensor | slice) -> Turn:
        return Turn(self.cos_RP[row_Q], self.sin_RP[row_Q])


def rates(theta: float, size: int, yarn: Yarn | None) -> Tensor:
    """Radians a position, [size / 2], in float32; YaRN slows the slow pairs down."""
    pairs = torch.arange(0, size, 2, dtype=torch.float64)
    rate_P = theta ** (-pairs / size)
    if yarn is None:
        return rate_P.float()

    def correction(turns: float) -> float:
        return size * math.log(yarn.original / (2 * math.pi * turns)) / (2 * math.log(theta))

    low = max(math.floor(correction(yarn.beta_fast)), 0)
    high = min(math.ceil(correction(yarn.beta_slow)), size - 1)
    ramp_P = (torch.arange(size // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)
    ramp_P = ramp_P.clamp(0, 1)
    return (rate_P / yarn.factor * ramp_P + rate_P * (1 - ramp_P)).float()


class Rates(NamedTuple):
    """Of layers with the window alone, and of layers that compress."""

    plain_P: Tensor
    compressed_P: Tensor


def both(config: Config, device: torch.device) -> Rates:
    return Rates(
        rates(config.theta, config.rope_size, None).to(device),
        rates(config.compress_theta, config.rope_size, config.yarn).to(device),
    )


def turn_at(position_R: Tensor, rate_P: Tensor) -> Turn:
    angle_RP = position_R[:, None].to(rate_P.dtype) * rate_P
    return Turn(torch.cos(angle_RP), torch.sin(angle_RP))


def rotate(ops: Ops, x: Tensor, turn: Turn, *, back: bool = False) -> Tensor:
    """Turn the last pairs of x [R, ..., D]."""
    return ops.rotate(x, turn.cos_RP, turn.sin_RP, back)
