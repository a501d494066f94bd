"""Records to a step's words: which sizes a round or a prompt has, and what they hold.

Host only: lists and numpy, no tensors. Lists of rows are of those that need something or, where a
device's buckets say so, of all rows, with values that ask for nothing in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tensorfold.core import keyed
from tensorfold.core.engine import batch, noise, sampling
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.packing import Buckets, Depth, Shape, Sizes, host_blocks, layout
from tensorfold.core.engine.sampling import Reach, has_cuts
from tensorfold.core.engine.state import Seat, Storage
from tensorfold.core.engine_api import Opening, Piece, Sampling, Window


@dataclass(kw_only=True, slots=True)
class Stream:
    """An open stream: its opening, what it has claimed, and how many of its rows count.

    `base` is its seed's `noise.base_key`. `head` is where its cuts are looked for; it grows when it
    was too short, and changes no token.
    """

    opening: Opening
    seat: Seat
    rows: int
    base: int = field(init=False)
    head: int = field(init=False)

    def __post_init__(self) -> None:
        self.base = noise.base_key(self.opening.seed)
        self.head = max(sampling.HEAD, self.opening.sampling.top_k)

    def look_further(self) -> None:
        """After a draw that was unsure."""
        if has_cuts(self.opening.sampling):
            self.head *= sampling.GROWTH


class Want(NamedTuple):
    """A row that something is asked of: the stream, and the absolute position drawn for it."""

    stream: Stream
    position: int


class Order(NamedTuple):
    """A step to run: its sizes and its words; which rows are told, and which streams' places ask
    for drafts, in the order in which it answers."""

    shape: Shape
    words: np.ndarray
    told: Sequence[int]
    asks: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordering:
    """`most` is the drafts a stream may want, `block` a block drafter's rows (0: chained drafts).

    `staging` gives a host array of so many words, to be written before the next step is run.
    """

    storage: Storage
    sizes: Sizes
    context: int
    vocab_size: int
    most: int
    block: int
    buckets: Buckets
    staging: Callable[[int], np.ndarray]

    def round(self, streams: Mapping[int, Stream], windows: Sequence[Window], exact: bool) -> Order:
        """`exact`: every draw reaches the whole vocabulary."""
        buckets = self.buckets
        own = [streams[window.stream] for window in windows]
        runs = [
            Run(window.tokens, stream.seat.lane, stream.rows)
            for window, stream in zip(windows, own, strict=True)
        ]
        span = batch.spans(runs)
        real = int(span.counts.sum())
        rows = buckets.rows(real)
        by_row = [
            Want(stream, stream.rows + 1 + place)
            for window, stream in zip(windows, own, strict=True)
            for place in range(len(window.tokens))
        ]
        masks = {
            int(first) + place: mask
            for window, first in zip(windows, span.firsts, strict=True)
            for place, mask in enumerate(window.masks)
            if mask is not None
        }
        drawn = rows if buckets.whole else real
        wants = [self.wanted(window.want) for window in windows]
        seen = [
            stream.rows + len(window.tokens) for window, stream in zip(windows, own, strict=True)
        ]
        num_streams = buckets.streams(len(windows))
        asked = Asked(self, dict(enumerate(by_row)), masks, drawn, own, wants, seen, num_streams)
        shape = asked.shape(
            Shape(
                rows=rows,
                drawn=drawn,
                streams=num_streams,
                window=buckets.window(int(span.counts.max())),
                width=batch.width_of(max(seen), self.context),
                reach=Reach(0, 0),
            ),
            exact,
        )
        blocks, words = self.blocks(shape)
        batch.write_rows(blocks["row"], runs, span, self.storage)
        self.write_streams(blocks["stream"], span)
        blocks["stream"][4, : len(windows)] = [window.forced for window in windows]
        blocks["window"][:] = rows
        blocks["window"][: len(windows), : int(span.counts.max())] = batch.windows(span, rows)
        asked.write(blocks)
        return Order(shape, words, asked.told, asked.asks)

    def prompt(self, streams: Mapping[int, Stream], pieces: Sequence[Piece], exact: bool) -> Order:
        """As `round`; a piece that ends its prompt has its last row drawn from."""
        own = [streams[piece.stream] for piece in pieces]
        runs, given, wants = [], [], []
        following: list[int] = []
        ending: dict[int, Want] = {}
        masks: dict[int, bytes] = {}
        reads: list[tuple[int, int]] = []
        read_top = 0
        for place, (piece, stream) in enumerate(zip(pieces, own, strict=True)):
            prompt = stream.opening.prompt
            runs.append(Run(prompt[piece.start : piece.end], stream.seat.lane, piece.start))
            after = prompt[piece.start + 1 : piece.end + 1]
            ends = piece.end == len(prompt)
            if piece.logprobs is not None:
                reads += enumerate(after, len(following))
                read_top = max(read_top, piece.logprobs)
            given.append(-1 if ends else after[-1])
            following += (*after, 0) if ends else after
            wants.append(self.wanted(piece.want) if ends else 0)
            if ends:
                ending[place] = Want(stream, piece.end)
                if piece.mask is not None:
                    masks[place] = piece.mask
        span = batch.spans(runs)
        rows = batch.padded(len(following), self.sizes.tile)
        grid_rows, grid_lanes = (
            batch.grid_blocks(span, self.sizes.grid, rows)
            if self.storage.spec.blocks
            else (np.empty((0, self.sizes.grid), np.int64), np.empty(0, np.int64))
        )
        seen = [piece.end for piece in pieces]
        asked = Asked(self, ending, masks, len(pieces), own, wants, seen, len(pieces), whole=False)
        shape = asked.shape(
            Shape(
                rows=rows,
                drawn=len(pieces),
                streams=len(pieces),
                window=0,
                width=batch.width_of(max(seen), self.context),
                reach=Reach(0, 0),
                blocks=len(grid_lanes),
                read=len(reads),
                read_top=min(read_top, self.vocab_size),
            ),
            exact,
        )
        blocks, words = self.blocks(shape)
        batch.write_rows(blocks["row"], runs, span, self.storage)
        self.write_streams(blocks["stream"], span)
        blocks["last"][:] = 0
        blocks["last"][: len(pieces)] = span.firsts + span.counts - 1
        blocks["given"][:] = given
        blocks["following"][:] = 0
        blocks["following"][: len(following)] = following
        if len(grid_lanes):
            blocks["block"][:], blocks["block_lane"][:] = grid_rows, grid_lanes
        if reads:
            blocks["read"][:] = np.array(reads, dtype=np.int64).T
        asked.write(blocks)
        return Order(shape, words, asked.told, asked.asks)

    def idle(self, shape: Shape) -> np.ndarray:
        """Words of a round of this shape that is nothing but padding: it touches no stream."""
        made = layout(shape, self.sizes)
        words = np.zeros(made.words, dtype=np.int64)
        blocks = host_blocks(words, made)
        spare = self.storage.spare_lane
        blocks["row"][1] = blocks["stream"][0] = spare
        blocks["row"][4] = self.storage.spare_page * self.storage.spec.page
        blocks["window"][:] = shape.rows
        return words

    def wanted(self, want: int) -> int:
        return min(want, self.most)

    def blocks(self, shape: Shape) -> tuple[dict[str, np.ndarray], np.ndarray]:
        made = layout(shape, self.sizes)
        words = self.staging(made.words)
        return host_blocks(words, made), words

    def write_streams(self, block: np.ndarray, span: batch.Spans) -> None:
        """Padding streams have the spare lane and no rows."""
        real = len(span.lanes)
        block[:4, :real] = (span.lanes, span.firsts, span.counts, span.starts)
        block[4] = 0
        if real < block.shape[1]:
            block[:, real:] = 0
            block[0, real:] = self.storage.spare_lane


class Asked:
    """What a step's rows and streams ask for beyond a forward, gathered once."""

    def __init__(
        self,
        ordering: Ordering,
        rows: Mapping[int, Want],
        masks: Mapping[int, bytes],
        drawn: int,
        streams: Sequence[Stream],
        wants: Sequence[int],
        seen: Sequence[int],
        num_streams: int,
        whole: bool = True,
    ) -> None:
        """`rows` are those drawn from, of `drawn`; `whole` lets the buckets take all rows."""
        self.ordering, self.rows, self.masks, self.streams = ordering, rows, masks, streams
        self.whole = whole and ordering.buckets.whole
        self.seen = seen
        warm = [row for row, want in rows.items() if warms(want.stream)]
        self.noisy = self.some(warm, drawn)
        self.cut = self.cuts([rows[row].stream if row in rows else None for row in self.noisy])
        self.masked = self.some(list(masks), drawn)
        told = [row for row, want in rows.items() if want.stream.opening.logprobs is not None]
        self.told = self.some(told, drawn)
        order = sorted(range(len(wants)), key=lambda place: -wants[place])
        self.asks = self.some([place for place in order if wants[place]], num_streams)
        self.wants = [*wants, *[0] * (num_streams - len(wants))]
        asking = [streams[place] if place < len(streams) else None for place in self.asks]
        self.ask_noisy = self.some(
            [place for place, stream in enumerate(asking) if stream and warms(stream)], len(asking)
        )
        self.ask_cut = self.cuts([asking[place] for place in self.ask_noisy])
        self.asking = asking

    def some(self, chosen: Sequence[int], of: int) -> Sequence[int]:
        return range(of) if chosen and self.whole else chosen

    def cuts(self, streams: Sequence[Stream | None]) -> Sequence[int]:
        """Places of noisy rows with cuts."""
        chosen = [
            place
            for place, stream in enumerate(streams)
            if stream and warms(stream) and has_cuts(stream.opening.sampling)
        ]
        return self.some(chosen, len(streams))

    def shape(self, base: Shape, exact: bool) -> Shape:
        vocab_size = self.ordering.vocab_size
        heads = [
            stream.head
            for stream in (*self.streams, *filter(None, self.asking))
            if has_cuts(stream.opening.sampling)
        ]
        reach = Reach(
            min(max(heads), vocab_size) if self.cut or self.ask_cut else 0,
            min(sampling.CANDIDATES, vocab_size) if self.noisy or self.ask_noisy else 0,
        )
        tops = [
            self.rows[row].stream.opening.logprobs or 0 for row in self.told if row in self.rows
        ]
        top = max(tops, default=0)
        if self.whole and top:
            top = 1 << (top - 1).bit_length()
        return base._replace(
            reach=Reach(vocab_size, vocab_size) if exact else reach,
            noisy=len(self.noisy),
            cut=len(self.cut),
            masked=len(self.masked),
            told=len(self.told),
            top=min(top, vocab_size),
            depths=self.depths(),
            chain_width=self.chain_width(),
        )

    def depths(self) -> tuple[Depth, ...]:
        """A block drafter's block is one depth."""
        if not self.asks:
            return ()
        whole = Depth(len(self.asks), len(self.ask_noisy), len(self.ask_cut))
        if self.ordering.block:
            return (whole,)
        if self.whole:
            return (whole,) * self.ordering.most
        wants = [self.wants[place] for place in self.asks]
        noisy = [wants[place] for place in self.ask_noisy]
        cut = [noisy[place] for place in self.ask_cut]
        return tuple(
            Depth(*(sum(want > depth for want in part) for part in (wants, noisy, cut)))
            for depth in range(wants[0])
        )

    def chain_width(self) -> int:
        if not self.asks:
            return 0
        further = self.ordering.block or len(self.depths())
        seen = max(self.seen[place] for place in self.asks if place < len(self.seen)) + further
        return batch.width_of(min(seen, self.ordering.context), self.ordering.context)

    def write(self, blocks: Mapping[str, np.ndarray]) -> None:
        if self.noisy:
            given = [
                (
                    noise.signed(keyed.mix(want.stream.base + want.position * keyed.STEP)),
                    want.stream.opening.sampling,
                )
                if (want := self.rows.get(row)) is not None
                else None
                for row in self.noisy
            ]
            write_noisy(blocks["noisy"], self.noisy, given)
            write_cuts(blocks, "cut", self.cut, [one and one[1] for one in given])
        if self.masked:
            blocks["masked"][:] = self.masked
            write_masks(blocks["mask"], self.masked, self.masks, self.ordering.sizes.mask_bytes)
        if self.told:
            blocks["told"][:] = self.told
        if self.asks:
            blocks["ask"][0] = self.asks
            blocks["ask"][1] = [self.wants[place] for place in self.asks]
        if self.ask_noisy:
            asked = [
                (stream.base, stream.opening.sampling)
                if (stream := self.asking[place]) is not None
                else None
                for place in self.ask_noisy
            ]
            write_noisy(blocks["ask_noisy"], self.ask_noisy, asked)
            write_cuts(blocks, "ask_cut", self.ask_cut, [one and one[1] for one in asked])


def warms(stream: Stream) -> bool:
    return stream.opening.sampling.temperature > 0


def write_noisy(
    block: np.ndarray, rows: Sequence[int], given: Sequence[tuple[int, Sampling] | None]
) -> None:
    block[0] = rows
    block[1] = [one[0] if one else 0 for one in given]
    block[2].view(np.float64)[:] = [one[1].temperature if one else 0.0 for one in given]


def write_cuts(
    blocks: Mapping[str, np.ndarray],
    name: str,
    places: Sequence[int],
    given: Sequence[Sampling | None],
) -> None:
    if not places:
        return
    block, none = blocks[name], Sampling()
    own = [given[place] or none for place in places]
    most = np.iinfo(np.int64).max
    block[0] = places
    block[1] = [min(one.top_k, most) for one in own]
    block[2].view(np.float64)[:] = [one.top_p for one in own]
    block[3].view(np.float64)[:] = [one.min_p for one in own]


def write_masks(
    block: np.ndarray, rows: Sequence[int], masks: Mapping[int, bytes], size: int
) -> None:
    """Rows without a mask of their own are allowed everything."""
    by_byte = block.view(np.uint8)
    by_byte[:] = 0xFF
    for place, row in enumerate(rows):
        mask = masks.get(row)
        if mask is not None:
            assert len(mask) >= size, (len(mask), size)
            by_byte[place, :size] = np.frombuffer(mask, np.uint8, size)
