"""What stands between an expert's two products, as kernels share it."""

from __future__ import annotations

import triton
import triton.language as tl

FP8_BLOCK = tl.constexpr(32)


@triton.jit
def to_e4m3(value):
    """The nearest e4m3 of values up to 448, ties to even: three bits after the first, and below
    2^-6 multiples of 2^-9. Written out, since interpreters of the narrow type round otherwise."""
    bits = value.to(tl.int32, bitcast=True)
    kept = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
    # Adding 1.5 * 2^14 leaves no bits below 2^-9.
    small = (value + 24576.0) - 24576.0
    return tl.where(tl.abs(value) < 0.015625, small, kept.to(tl.float32, bitcast=True))


@triton.jit
def fp8_rounded(value, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """`core/ops/rounding.fp8_round`: e4m3 with a power-of-two scale for each 32."""
    blocks = tl.reshape(value, (ROWS, COLUMNS // FP8_BLOCK, FP8_BLOCK))
    most = tl.maximum(tl.max(tl.abs(blocks), 2), 1e-4) * (1 / 448.0)
    bits = most.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    scale = (exponent << 23).to(tl.float32, bitcast=True)[:, :, None]
    narrow = to_e4m3(tl.minimum(tl.maximum(blocks / scale, -448.0), 448.0))
    return tl.reshape(narrow * scale, (ROWS, COLUMNS))


@triton.jit
def hidden_of(
    gate,
    up,
    share,
    limit,
    WEIGHTED: tl.constexpr,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Clamped SwiGLU, times the row's weight if WEIGHTED, through FP8 if ROUNDED."""
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    value = gate / (1 + tl.exp(-gate)) * up
    if WEIGHTED:
        value = value * share[:, None]
    if ROUNDED:
        value = fp8_rounded(value, ROWS, COLUMNS)
    return value
