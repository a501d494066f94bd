"""Records to a step's words: which sizes a round or a prompt has, and what they hold.

Host only: lists and numpy, no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tensorfold.core.engine import batch
from tensorfold.core.engine.asking import Asked, Limits, Stream, Want
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.index_split import row_split
from tensorfold.core.engine.packing import Buckets, Shape, Sizes, host_blocks, layout
from tensorfold.core.engine.sampling import Reach
from tensorfold.core.engine.state import Storage
from tensorfold.core.engine_api import Piece, Window
from tensorfold.core.share import Share


class Order(NamedTuple):
    """A step to run: its sizes and its words; which rows are told, and which streams' places ask
    for drafts, in the order in which it answers."""

    shape: Shape
    words: np.ndarray
    told: Sequence[int]
    asks: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordering:
    """`staging` gives a host array of so many words, to be written before the next step is run;
    with `shortcut` a prompt's shape says what of it is read."""

    storage: Storage
    sizes: Sizes
    limits: Limits
    buckets: Buckets
    staging: Callable[[int], np.ndarray]
    shortcut: bool
    share: Share

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
        asked = Asked(
            self.limits, dict(enumerate(by_row)), masks, drawn, own, wants, seen, num_streams
        )
        shape = asked.shape(
            Shape(
                rows=rows,
                drawn=drawn,
                streams=num_streams,
                window=buckets.window(int(span.counts.max())),
                width=batch.width_of(max(seen), self.limits.context),
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
        asked = Asked(
            self.limits, ending, masks, len(pieces), own, wants, seen, len(pieces), whole=False
        )
        shape = asked.shape(
            Shape(
                rows=rows,
                drawn=len(pieces),
                streams=len(pieces),
                window=0,
                width=batch.width_of(max(seen), self.limits.context),
                reach=Reach(0, 0),
                blocks=len(grid_lanes),
                read=len(reads),
                read_top=min(read_top, self.limits.vocab_size),
                reads=tuple(map(Stream.read, own, pieces)) if self.shortcut else None,
                split=row_split(pieces, rows, self.share),
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
        return min(want, self.limits.most)

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
