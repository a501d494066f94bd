"""A step's inputs as one array of 64-bit words, and what fixes its sizes.

Everything that a step needs and the device does not hold crosses to it in one copy: ids, places,
keys, temperatures, masks. A `Shape` fixes where each of these lies and every size of the step, so
that equal shapes can share a captured graph; all else is content. The page table stays on the
device (`Storage.table`), and is changed there when a stream opens or closes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from tensorfold.core.engine.sampling import Reach
from tensorfold.core.family_api import Read, RowSplit


class Depth(NamedTuple):
    """How many streams a chained draft is made for, how many of them with noise, with cuts."""

    asks: int
    noisy: int
    cut: int


class Shape(NamedTuple):
    """The sizes of a step, all static: shapes that are equal run the same operations.

    rows: padded rows R of the forward. drawn: rows S that a token is drawn from. streams: B.
    window: rows W of the widest window, 0 of a prompt. width, chain_width: `Rows.width` of the
    forward and of its drafts' own rows, one of few sizes; `Rows.table_LP` is content. blocks: grid
    blocks of a prompt. noisy, cut, masked, told: rows of `drawn` (or all of them) with noise, cuts,
    masks and log-probabilities; top: alternatives told. asks: streams that want drafts, the
    greediest first, with noise and cuts; depths: how many still want each chained draft. read: rows
    of a prompt whose log-probabilities are told, read_top: alternatives. reads and split: those of
    `Rows`.
    """

    rows: int
    drawn: int
    streams: int
    window: int
    width: int
    reach: Reach
    blocks: int = 0
    noisy: int = 0
    cut: int = 0
    masked: int = 0
    told: int = 0
    top: int = 0
    depths: tuple[Depth, ...] = ()
    chain_width: int = 0
    read: int = 0
    read_top: int = 0
    reads: tuple[Read, ...] | None = None
    split: RowSplit | None = None

    @property
    def asks(self) -> Depth:
        return self.depths[0] if self.depths else Depth(0, 0, 0)


class Sizes(NamedTuple):
    """What the layout needs of an engine: grid, row tile and bytes of a mask."""

    grid: int
    tile: int
    mask_bytes: int


# Rows of a block of words, by name; float64 rows hold that type's bits.
ROW = ("id", "lane", "position", "offset", "slot")
STREAM = ("lane", "first", "count", "start", "forced")
NOISY = ("row", "key", "temperature")
CUT = ("place", "top_k", "top_p", "min_p")
ASK = ("stream", "want", "end")


def blocks_of(shape: Shape, sizes: Sizes) -> list[tuple[str, tuple[int, ...]]]:
    """The blocks of words of a step, in order, with their dimensions."""
    asks = shape.asks
    found: list[tuple[str, tuple[int, ...]]] = [
        ("row", (len(ROW), shape.rows)),
        ("stream", (len(STREAM), shape.streams)),
    ]
    if shape.window:
        found.append(("window", (shape.streams, shape.window)))
    else:
        # Rows that are drawn from, the token after each (-1 if drawn), and after every row.
        found += [
            ("last", (-(-shape.drawn // sizes.tile) * sizes.tile,)),
            ("given", (shape.drawn,)),
            ("following", (shape.rows,)),
            ("block", (shape.blocks, sizes.grid)),
            ("block_lane", (shape.blocks,)),
            ("read", (2, shape.read)),
        ]
    return [
        *found,
        ("noisy", (len(NOISY), shape.noisy)),
        ("cut", (len(CUT), shape.cut)),
        ("masked", (shape.masked,)),
        ("mask", (shape.masked, -(-sizes.mask_bytes // 8))),
        ("told", (shape.told,)),
        ("ask", (len(ASK), asks.asks)),
        ("ask_noisy", (len(NOISY), asks.noisy)),
        ("ask_cut", (len(CUT), asks.cut)),
    ]


class Layout(NamedTuple):
    """Names, dimensions and numbers of words of a shape's blocks, and their sum."""

    names: tuple[str, ...]
    dims: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    words: int


@lru_cache(maxsize=1024)
def layout(shape: Shape, sizes: Sizes) -> Layout:
    found = [(name, dims) for name, dims in blocks_of(shape, sizes) if prod(dims)]
    counts = tuple(prod(dims) for _, dims in found)
    return Layout(
        names=tuple(name for name, _ in found),
        dims=tuple(dims for _, dims in found),
        counts=counts,
        words=sum(counts),
    )


def empty(shape: Shape, sizes: Sizes) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """A step's blocks to be written, and the words that they are views of."""
    made = layout(shape, sizes)
    words = np.empty(made.words, dtype=np.int64)
    return host_blocks(words, made), words


def host_blocks(words: np.ndarray, made: Layout) -> dict[str, np.ndarray]:
    """Views of a host array by block, to be written."""
    found, first = {}, 0
    for name, dims, count in zip(made.names, made.dims, made.counts, strict=True):
        found[name] = words[first : first + count].reshape(dims)
        first += count
    return found


def device_blocks(words: Tensor, made: Layout) -> Mapping[str, Tensor]:
    """Views of a tensor by block; blocks without words are left out."""
    parts = words.split(made.counts)
    return {
        name: part.view(dims) if len(dims) > 1 else part
        for name, dims, part in zip(made.names, made.dims, parts, strict=True)
    }


class Buckets(Protocol):
    """How a device rounds the sizes of a step's shapes; what is added is padding.

    With `whole`, what any row needs (noise, cuts, masks, log-probabilities, drafts) is computed of
    all rows, so that few shapes serve every round. `prompt` rounds the rows of a prompt's forward,
    and its streams and blocks are rounded then; 0 leaves them all as they are.
    """

    whole: bool

    def rows(self, rows: int) -> int: ...

    def streams(self, streams: int) -> int: ...

    def window(self, rows: int) -> int: ...

    def prompt(self, rows: int) -> int: ...

    def blocks(self, blocks: int) -> int: ...


class Exact:
    """Nothing is added but the row tile: for devices that run at once what they are given."""

    whole = False

    def __init__(self, tile: int) -> None:
        self.tile = tile

    def rows(self, rows: int) -> int:
        return -(-rows // self.tile) * self.tile

    def streams(self, streams: int) -> int:
        return streams

    def window(self, rows: int) -> int:
        return rows

    def prompt(self, rows: int) -> int:
        return 0

    def blocks(self, blocks: int) -> int:
        return blocks


# Prompts of so few rows are rounded up to multiples of `STEP`: above, the device takes longer than
# whoever tells it what to do.
FEW, STEP = 512, 64


class Powers:
    """Powers of two from the row tile (at least 2) on: for devices that replay captured steps.

    No size is larger than its round's largest needs: `most_rows` of a round, `most_window`.
    `prompts` tells whether steps of few prompt rows are replayed too.
    """

    whole = True

    def __init__(
        self, *, tile: int, most_rows: int, most_window: int, prompts: bool = True
    ) -> None:
        assert tile & (tile - 1) == 0, tile
        assert STEP % tile == 0, (STEP, tile)
        self.prompts = prompts
        self.least = max(2, tile)
        self.most_rows = -(-most_rows // self.least) * self.least
        self.most_window = most_window

    def rows(self, rows: int) -> int:
        return min(max(self.least, power(rows)), self.most_rows)

    def streams(self, streams: int) -> int:
        return power(streams)

    def window(self, rows: int) -> int:
        return min(power(rows), self.most_window)

    def prompt(self, rows: int) -> int:
        return -(-rows // STEP) * STEP if self.prompts and rows <= FEW else 0

    def blocks(self, blocks: int) -> int:
        return power(blocks)


def power(count: int) -> int:
    """The least power of two from `count` on."""
    return 1 << (count - 1).bit_length()
