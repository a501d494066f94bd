"""Records to a step's words: which sizes a round has, and what they hold.

Host only: lists and numpy, no tensors.

B streams, R rows, N rows with noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import lt
from typing import NamedTuple

import numpy as np

from tensorfold.core.engine import batch, noise
from tensorfold.core.engine.asking import Asked, Limits, Stream, Want
from tensorfold.core.engine.packing import Buckets, Shape, Sizes, empty, host_blocks, layout
from tensorfold.core.engine.sampling import Reach
from tensorfold.core.engine.state import Storage
from tensorfold.core.engine_api import Window


class Order(NamedTuple):
    """A step to run: its sizes and its words, valid until the next order is asked for; each told
    row's place, and which streams' places ask for drafts, in the order in which it answers.

    `rounded`: its sizes are rounded up as the buckets say, so that other steps have them too.
    """

    shape: Shape
    words: np.ndarray
    told: Mapping[int, int]
    asks: Sequence[int]
    rounded: bool


# What a window asks for beside its tokens: how many it has, drafts, forced tokens, masks.
AskedBy = tuple[int, int, int, tuple[bytes | None, ...]]
PLAIN: AskedBy = (1, 0, 0, ())


class Moving(NamedTuple):
    """Views of the words that every round writes anew, and what they are made of.

    `stream_R` are the places of the rows' streams, none if each has one row; `base_R` where a
    row's lane begins in the table, `offset_R` its place in the window. `noisy_N` are the rows whose
    keys lie in `key_N`, none if all do, and `begin_N` what their keys begin with.
    """

    id_R: np.ndarray
    position_R: np.ndarray
    slot_R: np.ndarray
    start_B: np.ndarray
    page_R: np.ndarray
    stream_R: np.ndarray | None
    base_R: np.ndarray
    offset_R: np.ndarray
    table: np.ndarray
    page: int
    key_N: np.ndarray
    noisy_N: np.ndarray | None
    begin_N: np.ndarray


def moving(
    blocks: Mapping[str, np.ndarray], span: batch.Spans, asked: Asked, storage: Storage
) -> Moving:
    real, num_streams = int(span.counts.sum()), len(span.counts)
    row = blocks["row"][:, :real]
    noisy_N, begin_N = asked.begins()
    alone = bool((span.counts == 1).all())
    return Moving(
        id_R=row[0],
        position_R=row[2],
        slot_R=row[4],
        start_B=blocks["stream"][3, :num_streams],
        page_R=np.empty(real, dtype=np.int64),
        stream_R=None if alone else np.repeat(np.arange(num_streams), span.counts),
        base_R=row[1] * storage.table_LP.shape[1],
        offset_R=row[3].copy(),
        table=storage.table_LP.reshape(-1),
        page=storage.spec.page,
        key_N=blocks["noisy"][1, : len(noisy_N)] if len(noisy_N) else np.empty(0, np.int64),
        noisy_N=None if len(noisy_N) == real else noisy_N,
        begin_N=begin_N,
    )


class Coming(NamedTuple):
    """A round that is asked for: its streams, what their windows ask for, and whether it is the one
    that was foreseen."""

    own: list[Stream]
    asked: list[AskedBy]
    foreseen: bool


@dataclass(kw_only=True, slots=True)
class KeptRound:
    """A round's order and what it was made for: it serves another round of the same streams that
    ask for the same, while none of them has seen more than `seen` and cuts are looked for as far.

    `placed` are the rows of each stream that the words stand for; none if they are to be written.
    """

    order: Order
    own: list[Stream]
    asked: list[AskedBy]
    drawing: Asked
    widest: int
    seen: int
    moving: Moving
    placed: list[int] | None = None

    def fits(self, starts: Sequence[int]) -> bool:
        """Whether its sizes are those of a round from these rows on."""
        reach = self.order.shape.reach
        return self.drawing.head() == reach.head and max(starts) + self.widest <= self.seen

    def place(self, starts: list[int]) -> None:
        """Write where the streams are, and their noise."""
        self.placed = starts
        to = self.moving
        to.start_B[:] = starts
        position_R = to.position_R
        if to.stream_R is None:
            position_R[:] = to.start_B
        else:
            to.start_B.take(to.stream_R, out=position_R)
            position_R += to.offset_R
        page_R, slot_R = to.page_R, to.slot_R
        np.floor_divide(position_R, to.page, out=page_R)
        # Where the page lies less where it would without a table, and then the row inside it.
        np.subtract(to.table.take(page_R + to.base_R), page_R, out=slot_R)
        slot_R *= to.page
        slot_R += position_R
        if len(to.key_N):
            own_N = position_R if to.noisy_N is None else position_R.take(to.noisy_N)
            noise.write_keys(to.begin_N, own_N, to.key_N)

    def tell(self, tokens: Sequence[int]) -> None:
        """Write which tokens the rows are, in order."""
        self.moving.id_R[:] = tokens


@dataclass(kw_only=True, slots=True)
class Ordering:
    """`kept` is the last round's order: as long as the same streams bring as many rows and ask for
    the same, most of its words stay as they are.
    """

    storage: Storage
    sizes: Sizes
    limits: Limits
    buckets: Buckets
    kept: KeptRound | None = field(init=False, default=None)

    def coming(self, streams: Mapping[int, Stream], windows: Sequence[Window]) -> Coming:
        own = [streams[window.stream] for window in windows]
        asked = [
            (len(window.tokens), window.want, window.forced, window.masks) for window in windows
        ]
        kept = self.kept
        foreseen = (
            kept is not None
            and own == kept.own
            and asked == kept.asked
            and [stream.rows for stream in own] == kept.placed
        )
        return Coming(own, asked, foreseen)

    def foresee(self) -> None:
        """While a round is in flight: the words of the one after it as far as they are sure, should
        all go on with one row each."""
        kept = self.kept
        if kept is None or kept.moving.stream_R is not None:
            return
        starts = [stream.rows + 1 for stream in kept.own]
        ends = [stream.end for stream in kept.own]
        if not all(map(lt, starts, ends)):
            return
        if not kept.fits(starts):
            kept = self.kept = self.fresh(kept.own, kept.asked, starts, exact=False)
        kept.place(starts)

    def foreseen(self, own: list[Stream]) -> KeptRound | None:
        """The round of a further row of each of these streams, if its words are there but for the
        tokens and nothing is asked beside them."""
        kept = self.kept
        if kept is None or kept.own != own or kept.moving.stream_R is not None:
            return None
        plain = all(asks == PLAIN for asks in kept.asked)
        return kept if plain and kept.placed == [stream.rows + 1 for stream in own] else None

    def round(self, windows: Sequence[Window], coming: Coming, exact: bool = False) -> Order:
        """`exact`: every draw reaches the whole vocabulary."""
        kept = self.kept
        if exact and kept is not None:
            # A draw was unsure: not all went on as foreseen, and streams have learned from it.
            kept.placed = None
        if exact or not coming.foreseen:
            starts = [stream.rows for stream in coming.own]
            if exact or kept is None or not self.serves(kept, coming, starts):
                kept = self.fresh(coming.own, coming.asked, starts, exact)
                if not exact:
                    self.kept = kept
            kept.place(starts)
        assert kept is not None
        if kept.moving.stream_R is None:
            kept.tell([window.tokens[0] for window in windows])
        else:
            kept.tell([token for window in windows for token in window.tokens])
        return kept.order

    def serves(self, kept: KeptRound, coming: Coming, starts: Sequence[int]) -> bool:
        return coming.own == kept.own and coming.asked == kept.asked and kept.fits(starts)

    def fresh(
        self, own: list[Stream], asked_B: list[AskedBy], starts: Sequence[int], exact: bool
    ) -> KeptRound:
        """An order of a round from these rows on, of which all is written but what `KeptRound`
        writes."""
        buckets, storage = self.buckets, self.storage
        counts, asks, forced, masks_B = zip(*asked_B, strict=True)
        span = batch.spans_of([stream.seat.lane for stream in own], counts, starts)
        real, widest = int(span.counts.sum()), int(span.counts.max())
        rows = buckets.rows(real)
        by_row = [
            Want(stream, start + 1 + place)
            for stream, count, start in zip(own, counts, starts, strict=True)
            for place in range(count)
        ]
        masks_R = {
            first + place: mask
            for masks, first in zip(masks_B, span.firsts.tolist(), strict=True)
            for place, mask in enumerate(masks)
            if mask is not None
        }
        drawn = rows if buckets.whole else real
        wants = [min(want, self.limits.most) for want in asks]
        seen = [start + count for count, start in zip(counts, starts, strict=True)]
        num_streams = buckets.streams(len(own))
        asked = Asked(
            self.limits, dict(enumerate(by_row)), masks_R, drawn, own, wants, seen, num_streams
        )
        shape = asked.shape(
            Shape(
                rows=rows,
                drawn=drawn,
                streams=num_streams,
                window=buckets.window(widest),
                width=batch.width_of(max(seen), self.limits.context),
                reach=Reach(0, 0),
            ),
            exact,
        )
        blocks, words = empty(shape, self.sizes)
        batch.write_places(blocks["row"], span, storage)
        batch.write_streams(blocks["stream"], span, storage)
        blocks["stream"][4, : len(own)] = forced
        blocks["window"][:] = rows
        blocks["window"][: len(own), :widest] = batch.windows(span, rows)
        asked.write(blocks)
        return KeptRound(
            order=Order(shape, words, asked.told_places(), asked.asks, True),
            own=own,
            asked=asked_B,
            drawing=asked,
            widest=widest,
            seen=asked.room(shape),
            moving=moving(blocks, span, asked, storage),
        )

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
