"""Calls at the released models' sizes of the ops that read what other rows left, with their floors.

What a call must move and compute, counted from its own arguments. K key and V value size of a KDA
head, T = 64 rows of a block, C latent size, D index key size, H heads.

- kda_steps: a stream's state (H K V float32) once in, once out where rows count, and its rows;
  7 H K V operations a row.
- kda_blocks: the rows in and out, and a state in and out; of a block and head 4 T^2 K (scores of
  keys and queries) + T^2 (K + V) (solving) + 6 T K V (state) + 2 T^2 V (reading), a triangle
  counted whole.
- latent_attention, sink_attention: every listed row of the cache once, C values, and the queries
  and outputs; 4 H C operations an entry. Rows of one prompt list the same latents: counted once.
- pick_tokens, pick_rows: every key that some row of a lane sees once, D values; 2 H D operations a
  row and place. Rows that keep all they see have nothing to compute.

Lists are random: what the indexes of a trained model pick lies closer together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensorfold.core.ops.kda_steps import unit
from tensorfold.core.ops.pick_tokens import list_width

HEADS, KDA, LATENT, INDEX_HEADS, INDEX = 64, 128, 512, 32, 128
TOP, POOL, PAGE = 512, 4, 64
WINDOW, SIZE, BLOCKS = 128, 8, 2048
BLOCK = 64


class OpCall(NamedTuple):
    """`make` gives a call's arguments, new ones each time: calls over several of them in turn find
    nothing in the cache. `moved` bytes and `operations` are the floor."""

    op: str
    name: str
    make: Callable[[], tuple[Any, ...]]
    moved: int
    operations: int


class Maker:
    """Random tensors of one format on one device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.size = torch.finfo(dtype).bits // 8
        self.generator = torch.Generator(device).manual_seed(0)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        x = torch.randn(shape, generator=self.generator, device=self.device)
        return x.to(dtype or self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def below(self, most: int, *shape: int) -> Tensor:
        return torch.randint(0, most, shape, generator=self.generator, device=self.device)

    def lanes(self, *numbers: int) -> Tensor:
        return torch.tensor(numbers, device=self.device)

    def spread(self, rows: int, count: int, most: int) -> Tensor:
        """`count` places below `most` a row, ascending and distinct: one a stretch."""
        stretch = most // count
        first = torch.arange(count, device=self.device) * stretch
        return first + self.below(stretch, rows, count)


def kda_steps(m: Maker, streams: int, width: int, counts: int) -> OpCall:
    def make() -> tuple[Any, ...]:
        shape = (streams, width, HEADS, KDA)
        return (
            (unit(m.normal(*shape, dtype=torch.float32)) * KDA**-0.5).to(m.dtype),
            unit(m.normal(*shape, dtype=torch.float32)).to(m.dtype),
            m.normal(*shape),
            -5 * m.uniform(*shape),
            m.uniform(streams, width, HEADS),
            torch.arange(streams, device=m.device),
            torch.full((streams,), counts, device=m.device),
            m.normal(streams, HEADS, KDA, KDA, dtype=torch.float32),
        )

    state = 4 * HEADS * KDA * KDA
    moved = streams * (state * (2 if counts else 1) + width * HEADS * KDA * (4 * m.size + 4))
    name = f"{streams} streams of {width}, {'kept' if counts else 'read'}"
    return OpCall("kda_steps", name, make, moved, 7 * streams * width * HEADS * KDA * KDA)


def kda_blocks(m: Maker, rows: int, lanes: int = 1) -> OpCall:
    def make() -> tuple[Any, ...]:
        shape = (rows, HEADS, KDA)
        index = torch.arange(rows, device=m.device).view(-1, BLOCK)
        return (
            (unit(m.normal(*shape, dtype=torch.float32)) * KDA**-0.5).to(m.dtype),
            unit(m.normal(*shape, dtype=torch.float32)).to(m.dtype),
            m.normal(*shape),
            -5 * m.uniform(*shape),
            m.uniform(rows, HEADS),
            index,
            torch.arange(len(index), device=m.device) * lanes // len(index),
            m.normal(lanes, HEADS, KDA, KDA, dtype=torch.float32),
        )

    moved = rows * HEADS * KDA * (4 * m.size + 4) + 8 * lanes * HEADS * KDA * KDA
    block = 4 * BLOCK**2 * KDA + 2 * BLOCK**2 * KDA + 6 * BLOCK * KDA**2 + 2 * BLOCK**2 * KDA
    return OpCall("kda_blocks", f"{rows} rows", make, moved, rows // BLOCK * HEADS * block)


def pages_of(context: int) -> int:
    """Pages of a lane's table. Behind it nothing may be looked up: a context fills its last one."""
    assert context % PAGE == 0, context
    return context // PAGE


def latent_attention(m: Maker, rows: int, context: int, *, prompt: bool) -> OpCall:
    """Rows of streams of their own at one context, or the last rows of one prompt."""
    lanes = 1 if prompt else rows
    dense = context <= TOP * POOL
    width = context if dense else list_width(TOP, POOL, context)
    pages = pages_of(context)

    def make() -> tuple[Any, ...]:
        last = torch.full((rows, 1), context - 1, device=m.device)
        if prompt:
            last = torch.arange(context - rows, context, device=m.device)[:, None]
        if dense:
            token = torch.arange(width, device=m.device).expand(rows, -1)
        else:
            pool = m.spread(rows, TOP, context // POOL)
            token = (pool[..., None] * POOL + torch.arange(POOL, device=m.device)).flatten(1)
            token = torch.nn.functional.pad(token, (0, width - token.shape[1]), value=context)
        list_RK = torch.where(token <= last, token, -1).contiguous()
        table = torch.randperm(lanes * pages, generator=m.generator, device=m.device)
        return (
            m.normal(rows, HEADS, LATENT),
            m.normal(lanes * context, LATENT),
            table.view(lanes, pages),
            torch.arange(rows, device=m.device) % lanes,
            list_RK,
            PAGE,
            LATENT**-0.5,
        )

    used = min(context, TOP * POOL)
    entries = sum(min(used, seen + 1) for seen in range(context - rows, context))
    entries = entries if prompt else rows * used
    listed = min(context, entries) if prompt else entries
    moved = m.size * LATENT * (listed + 2 * rows * HEADS)
    kind = "prompt rows" if prompt else "streams"
    name = f"{rows} {kind} at {context}"
    return OpCall("latent_attention", name, make, moved, 4 * HEADS * LATENT * entries)


def sink_attention(m: Maker, rows: int, listed: int, *, prompt: bool) -> OpCall:
    """Whole windows, and `listed` compressed rows of a memory of 64 times as many."""
    lanes, ring = (1 if prompt else rows), WINDOW + 8

    def make() -> tuple[Any, ...]:
        row = torch.arange(rows, device=m.device)[:, None]
        back = torch.arange(WINDOW - 1, -1, -1, device=m.device)
        if prompt:
            window = torch.where(row >= back, ring + row - back, (row - back) % ring)
        else:
            window = row * ring + back
            window[:, -1:] = lanes * ring + row
        memory = lanes * 64 * max(listed, 1)
        return (
            m.normal(rows, HEADS, LATENT),
            m.normal(lanes * ring, LATENT),
            m.normal(rows, LATENT),
            window.contiguous(),
            m.normal(memory, LATENT),
            m.spread(rows, max(listed, 1), memory)[:, :listed].contiguous(),
            m.normal(HEADS, dtype=torch.float32),
            LATENT**-0.5,
        )

    entries = rows * (WINDOW + listed)
    read = min(entries, rows + ring + 64 * listed) if prompt else entries
    moved = m.size * LATENT * (read + 2 * rows * HEADS)
    name = f"{rows} {'prompt rows' if prompt else 'streams'} of {WINDOW}+{listed}"
    return OpCall("sink_attention", name, make, moved, 4 * HEADS * LATENT * entries)


def pick_tokens(m: Maker, rows: int, context: int, *, prompt: bool) -> OpCall:
    lanes, pages = (1 if prompt else rows), pages_of(context)

    def make() -> tuple[Any, ...]:
        last = torch.full((rows,), context - 1, device=m.device)
        if prompt:
            last = torch.arange(context - rows, context, device=m.device)
        table = torch.randperm(lanes * pages, generator=m.generator, device=m.device)
        return (
            m.normal(rows, INDEX_HEADS, INDEX),
            m.normal(rows, INDEX_HEADS),
            m.normal(lanes * context // POOL, INDEX),
            table.view(lanes, pages),
            torch.arange(rows, device=m.device) % lanes,
            last,
            *(TOP, POOL, PAGE, context),
        )

    seen = [(token + 1) // POOL for token in range(context - rows, context)]
    places = sum(n for n in seen if n > TOP) if prompt else rows * (context // POOL)
    moved = m.size * INDEX * (lanes * (context // POOL) + rows * INDEX_HEADS) + 8 * rows * 2064
    name = f"{rows} {'prompt rows' if prompt else 'streams'} at {context}"
    return OpCall("pick_tokens", name, make, moved, 2 * INDEX_HEADS * INDEX * places)


def pick_rows(m: Maker, rows: int, visible: int, role: str, *, prompt: bool) -> OpCall:
    """An index at ratio 1: `plain`, one that `publishes` candidates, or `restricted` to them."""
    lanes, pages = (1 if prompt else rows), pages_of(visible)
    restricted = role == "restricted"

    def make() -> tuple[Any, ...]:
        last = torch.full((rows,), visible, device=m.device)
        if prompt:
            last = torch.arange(visible - rows + 1, visible + 1, device=m.device)
        table = torch.randperm(lanes * pages, generator=m.generator, device=m.device)
        blocks = m.spread(rows, min(BLOCKS, visible // SIZE), visible // SIZE)
        return (
            m.normal(rows, INDEX_HEADS, INDEX),
            m.normal(rows, INDEX_HEADS),
            m.normal(lanes * visible, INDEX),
            table.view(lanes, pages),
            torch.arange(rows, device=m.device) % lanes,
            last,
            blocks if restricted else blocks[:, :0].contiguous(),
            *(TOP, BLOCKS if role == "publishes" else 0, SIZE, PAGE, visible),
        )

    each = min(visible, BLOCKS * SIZE) if restricted else visible
    places = rows * each - (rows * (rows - 1) // 2 if prompt and not restricted else 0)
    keys = lanes * visible if prompt else rows * each
    moved = m.size * INDEX * (keys + rows * INDEX_HEADS)
    name = f"{rows} {'prompt rows' if prompt else 'streams'} of {visible}, {role}"
    return OpCall("pick_rows", name, make, moved, 2 * INDEX_HEADS * INDEX * places)


def calls(m: Maker) -> Iterator[OpCall]:
    """Rounds of 1, 8 and 32 rows at context 512 and of one row at 131,072; prompts of 2,048 and
    8,192 rows, and the last 2,048 rows of 131,072."""
    for streams in (1, 8, 32):
        yield kda_steps(m, streams, 1, 1)
    yield kda_steps(m, 8, 4, 0)
    yield kda_steps(m, 8, 4, 2)
    for rows in (2048, 8192):
        yield kda_blocks(m, rows)
    for streams in (1, 8, 32):
        yield latent_attention(m, streams, 512, prompt=False)
    yield latent_attention(m, 1, 131072, prompt=False)
    yield latent_attention(m, 32, 131072, prompt=False)
    for rows in (2048, 8192):
        yield latent_attention(m, rows, rows, prompt=True)
    yield latent_attention(m, 2048, 131072, prompt=True)
    for streams in (1, 8, 32):
        yield sink_attention(m, streams, 256, prompt=False)
    yield sink_attention(m, 1, 512, prompt=False)
    for rows in (2048, 8192):
        yield sink_attention(m, rows, 512, prompt=True)
    yield pick_tokens(m, 1, 131072, prompt=False)
    yield pick_tokens(m, 32, 16384, prompt=False)
    yield pick_tokens(m, 8192, 8192, prompt=True)
    yield pick_tokens(m, 2048, 131072, prompt=True)
    yield pick_rows(m, 1, 131072, "publishes", prompt=False)
    yield pick_rows(m, 1, 131072, "restricted", prompt=False)
    yield pick_rows(m, 8, 512, "plain", prompt=False)
    yield pick_rows(m, 8192, 8192, "publishes", prompt=True)
    yield pick_rows(m, 2048, 32768, "restricted", prompt=True)
