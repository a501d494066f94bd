"""The ops at the true widths of the two released models."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorfold.core.ops import rotate
from tensorfold.tools.operands import Args, Maker, Point, size
from tensorfold.tools.ops_at_width_memory import memory_points
from tensorfold.tools.ops_at_width_vocabulary import vocabulary_points


def linear(label: str, n: int, k: int, most: int = 1 << 20) -> Point:
    return Point(
        op="linear",
        label=label,
        make=lambda m, rows: (m.normal(rows, k), m.normal(n, k, scale=k**-0.5)),
        shared=(1,),
        flops=lambda args: 2.0 * args[0].shape[0] * n * k,
        peer=lambda args: F.linear(*args),
        most=most,
    )


def mixed(label: str, n: int, k: int, wide_x: bool, most: int = 1 << 20) -> Point:
    """A product of two formats; the peer widens the narrow one before it."""
    return Point(
        op="linear",
        label=label,
        make=lambda m, rows: (
            m.normal(rows, k, wide=wide_x),
            m.normal(n, k, scale=k**-0.5, wide=not wide_x),
        ),
        shared=(1,),
        flops=lambda args: 2.0 * args[0].shape[0] * n * k,
        peer=lambda args: F.linear(args[0].float(), args[1].float()),
        most=most,
    )


def parts(label: str, n: int, k: int) -> Point:
    return Point(
        op="linear_parts",
        label=label,
        make=lambda m, rows: (m.normal(rows, k), m.normal(8, k // 8, n, scale=k**-0.5)),
        shared=(1,),
        flops=lambda args: 2.0 * args[0].shape[0] * n * k,
        peer=lambda args: args[0] @ args[1].flatten(0, 1),
        plain=lambda args: (args[0], args[1].flatten(0, 1)[None]),
    )


def heads(label: str, h: int, k: int, n: int) -> Point:
    return Point(
        op="linear_heads",
        label=label,
        make=lambda m, rows: (m.normal(rows, h, k), m.normal(h, k, n, scale=k**-0.5)),
        shared=(1,),
        flops=lambda args: 2.0 * args[0].shape[0] * h * n * k,
        peer=lambda args: torch.bmm(args[0].transpose(0, 1), args[1]).transpose(0, 1).contiguous(),
    )


def norm(label: str, *shape: int) -> Point:
    return Point(
        op="rms_norm",
        label=label,
        make=lambda m, rows: (m.normal(rows, *shape), m.normal(shape[-1]), 1e-5),
        peer=lambda args: F.rms_norm(args[0], args[0].shape[-1:], args[1], args[2]),
    )


def hyper(op: str, label: str, d: int, eps: float) -> Point:
    return Point(
        op=op,
        label=label,
        make=lambda m, rows: (
            m.normal(rows, 4, d),
            m.normal(24, 4 * d, scale=(4 * d) ** -0.5, wide=True),
            m.normal(24, wide=True),
            m.normal(3, wide=True),
            eps,
            1e-6,
            20,
        ),
        shared=(1,),
        flops=lambda args: 2.0 * args[0].numel() * 24,
    )


def experts(op: str, label: str, count: int, top: int, d: int, inner: int) -> Point:
    weighted = op == "experts_weighted"

    def make(m: Maker, rows: int) -> Args:
        return (
            m.normal(rows, d),
            m.picks(rows, count, top),
            m.uniform(rows, top),
            m.normal(count, d, 2 * inner, scale=d**-0.5),
            m.normal(count, inner, d, scale=inner**-0.5),
            10.0,
            *((False,) if weighted else ()),
            0,
            8,
        )

    def fewest(args: Args, found: tuple[Tensor, ...]) -> float:
        picked = len(torch.unique(args[1]))
        return size((*args[:3], *found)) + size(args[3:5]) * picked / count

    return Point(
        op=op,
        label=label,
        make=make,
        flops=lambda args: 6.0 * args[1].numel() * d * inner,
        bytes=fewest,
        peer=None if weighted else grouped_products,
        plain=lambda args: (*args[:-1], 1),
    )


def grouped_products(args: Args) -> Tensor:
    """Sorted picks through two grouped products of the library, added up in any order."""
    x, ids, weight, gate_up, down, limit, *_ = args
    order = ids.flatten().argsort(stable=True)
    row = order // ids.shape[1]
    bounds = torch.arange(1, gate_up.shape[0] + 1, device=x.device)
    ends = torch.searchsorted(ids.flatten()[order], bounds).to(torch.int32)
    gate, up = torch._grouped_mm(x[row], gate_up, offs=ends).chunk(2, -1)
    hidden = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    out = torch._grouped_mm(hidden, down, offs=ends) * weight.flatten()[order, None]
    return torch.zeros_like(x, dtype=torch.float32).index_add_(0, row, out.float()).to(x.dtype)


def convolved(m: Maker, rows: int) -> Args:
    source = torch.arange(rows, device=m.device)[:, None] + torch.arange(4, device=m.device)
    channels = 3 * 64 * 128
    return (
        m.normal(rows, channels),
        m.normal(1, 3, channels),
        source,
        m.normal(channels, 4, wide=True),
    )


def gated(m: Maker, rows: int) -> Args:
    return (
        m.normal(rows, 4, 5120),
        m.normal(rows, 4, 5120),
        m.normal(rows, 5120),
        m.normal(4, 5120, wide=True),
        torch.ones(rows, dtype=m.dtype, device=m.device),
        1e-20,
    )


def rotated(label: str, *shape: int) -> Point:
    def make(m: Maker, rows: int) -> Args:
        angle_RP = m.normal(rows, 32, wide=True)
        return m.normal(rows, *shape), torch.cos(angle_RP), torch.sin(angle_RP), False

    return Point(op="rotate", label=label, make=make, peer=lambda args: rotate.reference(*args))


def points() -> Iterator[Point]:
    """Every op of the table, at each width that a release calls it with."""
    d, v = 4096, 5120
    yield linear("glm53 kda in", 24896, d)
    yield linear("glm53 dsa in", 2336, d)
    yield linear("glm53 q up", 16384, 1536)
    yield linear("glm53 index q", d, 1536)
    yield linear("glm53 shared gate, up", d, d)
    yield linear("glm53 dense gate, up", 24576, d)
    yield linear("glm53 head", 154880, d, most=64)
    yield mixed("glm53 router", 288, d, False)
    yield linear("dsv41 in", 1792, v)
    yield linear("dsv41 q up", 32768, 1280)
    yield mixed("dsv41 head", 129280, v, True, most=64)
    yield parts("glm53 kda out", d, 8192)
    yield parts("glm53 dsa out", d, 16384)
    yield parts("glm53 shared down", d, 2048)
    yield parts("dsv41 o up", v, 8192)
    yield heads("glm53 kda gates", 2, 128, 8192)
    yield heads("glm53 keys", 64, 256, 512)
    yield heads("glm53 values", 64, 512, 256)
    yield heads("dsv41 o down", 8, 4096, 1024)
    yield norm("glm53 rows", d)
    yield norm("glm53 kda heads", 64, 128)
    yield Point(
        op="layer_norm",
        label="glm53 index key",
        make=lambda m, rows: (m.normal(rows, 128), m.normal(128), m.normal(128), 1e-6),
        peer=lambda args: F.layer_norm(args[0], (128,), *args[1:]),
    )
    yield hyper("hc_split", "glm53", d, 1e-5)
    yield hyper("hc_mix", "dsv41", v, 1e-20)
    yield Point(
        op="hc_collapse",
        label="dsv41",
        make=lambda m, rows: (m.normal(rows, 4, v), m.uniform(rows, 4)),
    )
    yield Point(
        op="hc_join",
        label="glm53",
        make=lambda m, rows: (
            m.normal(rows, d),
            m.normal(rows, 4, d),
            m.uniform(rows, 4),
            m.uniform(rows, 4, 4),
        ),
    )
    yield Point(op="short_conv", label="glm53", make=convolved)
    yield Point(
        op="pool_keys",
        label="glm53",
        make=lambda m, rows: (*m.normal(rows, 4, 256).chunk(2, -1), m.normal(4, 128)),
    )
    yield Point(
        op="route",
        label="glm53",
        make=lambda m, r: (m.normal(r, 288, wide=True), m.normal(288, wide=True), 8, 2.5, True),
    )
    yield Point(
        op="route_softplus",
        label="dsv41",
        make=lambda m, r: (m.normal(r, 384, wide=True), m.normal(384, wide=True), 6, 1.5),
    )
    yield experts("experts", "glm53", 288, 8, d, 2048)
    yield experts("experts_weighted", "dsv41", 384, 6, v, 2304)
    yield Point(op="engram_gate", label="dsv41", make=gated)
    yield rotated("dsv41 q", 64, 512)
    yield rotated("dsv41 window row", 512)
    yield from vocabulary_points()
    yield from memory_points()
