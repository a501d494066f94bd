"""Pieces of prompts to a step's words: which sizes their forward has, and what they hold.

Host only: lists and numpy, no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensorfold.core.engine import batch
from tensorfold.core.engine.asking import Asked, Limits, Stream, Want
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.index_split import row_split
from tensorfold.core.engine.ordering import Order
from tensorfold.core.engine.packing import Buckets, Shape, Sizes, empty
from tensorfold.core.engine.sampling import Reach
from tensorfold.core.engine.state import Storage
from tensorfold.core.engine_api import Piece
from tensorfold.core.share import Share


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompting:
    """With `shortcut` a prompt's shape says what of it is read. With `captures` forwards of few
    rows are rounded up as the buckets say, and all of them is read, so that few shapes serve."""

    storage: Storage
    sizes: Sizes
    limits: Limits
    buckets: Buckets
    shortcut: bool
    captures: bool
    share: Share

    def order(self, streams: Mapping[int, Stream], pieces: Sequence[Piece], exact: bool) -> Order:
        """A piece that ends its prompt has its last row drawn from. `exact`: every draw reaches the
        whole vocabulary."""
        own = [streams[piece.stream] for piece in pieces]
        runs, given, wants = [], [], []
        real = 0
        ending: dict[int, Want] = {}
        masks: dict[int, bytes] = {}
        reads: list[tuple[int, int]] = []
        read_top = 0
        for place, (piece, stream) in enumerate(zip(pieces, own, strict=True)):
            prompt = stream.opening.prompt
            runs.append(Run(prompt[piece.start : piece.end], stream.seat.lane, piece.start))
            ends = piece.end == len(prompt)
            if piece.logprobs is not None:
                reads += enumerate(prompt[piece.start + 1 : piece.end + 1], real)
                read_top = max(read_top, piece.logprobs)
            given.append(-1 if ends else prompt[piece.end])
            real += piece.end - piece.start
            wants.append(min(piece.want, self.limits.most) if ends else 0)
            if ends:
                ending[place] = Want(stream, piece.end)
                if piece.mask is not None:
                    masks[place] = piece.mask
        span = batch.spans(runs)
        num_streams = len(pieces)
        rows = self.rounded(real) if not reads and not any(piece.split for piece in pieces) else 0
        whole = rows > 0
        if whole:
            num_streams = self.buckets.streams(num_streams)
        else:
            rows = batch.padded(real, self.sizes.tile)
        grid_rows, grid_lanes = (
            batch.grid_blocks(span, self.sizes.grid, rows)
            if self.storage.spec.blocks
            else (np.empty((0, self.sizes.grid), np.int64), np.empty(0, np.int64))
        )
        num_blocks = len(grid_lanes)
        seen = [piece.end for piece in pieces]
        asked = Asked(
            self.limits, ending, masks, num_streams, own, wants, seen, num_streams, whole=whole
        )
        split = row_split(pieces, rows, self.share)
        shape = asked.shape(
            Shape(
                rows=rows,
                drawn=num_streams,
                streams=num_streams,
                window=0,
                width=batch.width_of(max(seen), self.limits.context),
                reach=Reach(0, 0),
                blocks=self.buckets.blocks(num_blocks) if whole and num_blocks else num_blocks,
                read=len(reads),
                read_top=min(read_top, self.limits.vocab_size),
                reads=None if whole or not self.shortcut else tuple(map(Stream.read, own, pieces)),
                split=split,
            ),
            exact,
        )
        blocks, words = empty(shape, self.sizes)
        self.clear(blocks, shape)
        batch.write_rows(blocks["row"], runs, span, self.storage)
        batch.write_streams(blocks["stream"], span, self.storage)
        asked.write_keys(blocks)
        last = span.firsts + span.counts - 1
        blocks["last"][: len(pieces)] = last
        blocks["given"][: len(pieces)] = given
        # Every row's next one in the batch, but for a piece's last: nothing is known after an end.
        blocks["following"][: real - 1] = blocks["row"][0, 1:real]
        blocks["following"][last] = np.maximum(given, 0)
        if num_blocks:
            blocks["block"][:num_blocks], blocks["block_lane"][:num_blocks] = grid_rows, grid_lanes
        if reads:
            blocks["read"][:] = np.array(reads, dtype=np.int64).T
        asked.write(blocks)
        return Order(shape, words, asked.told_places(), asked.asks, whole)

    def rounded(self, rows: int) -> int:
        """What a forward of so many rows is rounded up to; 0 where it has them as they are."""
        return self.buckets.prompt(rows) if self.captures else 0

    def clear(self, blocks: Mapping[str, np.ndarray], shape: Shape) -> None:
        """What padding holds beside its rows: draws from one row past the end, tokens that are
        given, blocks of the spare lane that have no row."""
        blocks["last"][:], blocks["last"][: shape.drawn] = 0, shape.rows
        blocks["given"][:], blocks["following"][:] = 0, 0
        if shape.blocks:
            blocks["block"][:], blocks["block_lane"][:] = shape.rows, self.storage.spare_lane

    def idle(self, shape: Shape) -> np.ndarray:
        """Words of a forward of this shape that is nothing but padding: it touches no stream."""
        blocks, words = empty(shape, self.sizes)
        words[:] = 0
        batch.write_rows(blocks["row"], (), batch.spans(()), self.storage)
        batch.write_streams(blocks["stream"], batch.spans(()), self.storage)
        self.clear(blocks, shape)
        return words
