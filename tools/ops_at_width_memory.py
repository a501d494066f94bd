"""Operands, at true widths, of the ops whose rows read what other rows left."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorfold.tools.operands import Args, Maker, Point, size

PAGE = 64


def recurrence(m: Maker, rows: int) -> Args:
    """One row of each of `rows` streams."""
    return (
        m.unit(rows, 1, 64, 128),
        m.unit(rows, 1, 64, 128),
        m.normal(rows, 1, 64, 128),
        -5 * m.uniform(rows, 1, 64, 128),
        m.uniform(rows, 1, 64),
        torch.arange(rows, device=m.device),
        torch.ones(rows, dtype=torch.int64, device=m.device),
        m.normal(rows + 1, 64, 128, 128, wide=True),
    )


def blocks(m: Maker, rows: int) -> Args:
    place = torch.arange(-(-rows // 64) * 64, device=m.device).clamp(max=rows).view(-1, 64)
    return (
        m.unit(rows, 64, 128),
        m.unit(rows, 64, 128),
        m.normal(rows, 64, 128),
        -5 * m.uniform(rows, 64, 128),
        m.uniform(rows, 64),
        place,
        torch.zeros(len(place), dtype=torch.int64, device=m.device),
        m.normal(2, 64, 128, 128, wide=True),
    )


def table(m: Maker, pages: int) -> Tensor:
    return torch.arange(pages, device=m.device)[None]


def latent(m: Maker, rows: int) -> Args:
    """Rows at the end of a context of 8,192 tokens, 2,048 of them listed."""
    context, listed = 8192, 2048
    lists = m.uniform(1, context).argsort(-1)[:, :listed].sort(-1).values.expand(rows, -1)
    return (
        m.normal(rows, 64, 512),
        m.normal(context, 512),
        table(m, context // PAGE),
        torch.zeros(rows, dtype=torch.int64, device=m.device),
        F.pad(lists, (0, 16), value=-1).contiguous(),
        PAGE,
        1 / 16,
    )


def index(m: Maker, rows: int) -> Args:
    """Rows that end a context of 8,192 tokens."""
    context = 8192
    return (
        m.normal(rows, 32, 128),
        m.normal(rows, 32),
        m.normal(context // 4, 128),
        table(m, context // PAGE),
        torch.zeros(rows, dtype=torch.int64, device=m.device),
        torch.arange(context - rows, context, device=m.device),
        512,
        4,
        PAGE,
        context,
    )


def index_rows(m: Maker, rows: int) -> Args:
    context = 8192
    return (
        m.normal(rows, 32, 128),
        m.normal(rows, 32),
        m.normal(context, 128),
        table(m, context // PAGE),
        torch.zeros(rows, dtype=torch.int64, device=m.device),
        torch.arange(context - rows, context, device=m.device) + 1,
        torch.empty(rows, 0, dtype=torch.int64, device=m.device),
        512,
        2048,
        8,
        PAGE,
        context,
    )


def sink(m: Maker, rows: int) -> Args:
    context = 8192
    window = torch.arange(rows, device=m.device)[:, None] + torch.arange(128, device=m.device)
    return (
        m.normal(rows, 64, 512),
        m.normal(128, 512),
        m.normal(rows, 512),
        window,
        m.normal(context, 512),
        m.whole(context, rows, 512),
        m.normal(64, wide=True),
        512**-0.5,
    )


def state_bytes(args: Args, found: tuple[Tensor, ...]) -> float:
    """The recurrence reads and writes its states."""
    return size(args[:-1]) + size(found) + 2 * size(args[-1:]) * args[0].shape[0] / len(args[-1])


def memory_points() -> Iterator[Point]:
    yield Point(op="kda_steps", label="glm53", make=recurrence, bytes=state_bytes, most=256)
    yield Point(
        op="kda_blocks",
        label="glm53",
        make=blocks,
        # Products of a block of 64: two of [64, 64, K], three of [64, K, V] and a solve.
        flops=lambda args: 64.0 * args[0].shape[0] * (6 * 64 * 128 + 8 * 128 * 128),
    )
    yield Point(
        op="latent_attention",
        label="glm53",
        make=latent,
        flops=lambda args: 4.0 * args[0].numel() * 2048,
    )
    yield Point(
        op="pick_tokens",
        label="glm53",
        make=index,
        flops=lambda args: 2.0 * args[0].numel() * args[2].shape[0],
    )
    yield Point(
        op="pick_rows",
        label="dsv41",
        make=index_rows,
        flops=lambda args: 2.0 * args[0].numel() * args[2].shape[0],
    )
    yield Point(
        op="sink_attention",
        label="dsv41",
        make=sink,
        flops=lambda args: 4.0 * args[0].numel() * (128 + 512),
    )
