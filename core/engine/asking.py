"""Open streams, and what a step's rows and streams ask for beyond a forward.

Noise, cuts, masks, log-probabilities and drafts: lists of the rows that need them or, where a
device's buckets say so, of all rows, with values that ask for nothing in the others. Host only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tensorfold.core import keyed
from tensorfold.core.engine import batch, noise, sampling
from tensorfold.core.engine.packing import Depth, Shape
from tensorfold.core.engine.sampling import Reach, has_cuts
from tensorfold.core.engine.state import Seat
from tensorfold.core.engine_api import Opening, Piece, Sampling
from tensorfold.core.family_api import Read


class Limits(NamedTuple):
    """What asking needs of an engine: `most` drafts a stream, rows of a drafter's `block` (0 where
    drafts are chained), and `whole` as in `packing.Buckets`."""

    context: int
    vocab_size: int
    mask_bytes: int
    most: int
    block: int
    whole: bool


@dataclass(kw_only=True, slots=True, eq=False)
class Stream:
    """An open stream: its opening, what it has claimed, and how many of its rows count.

    `base` is its seed's `noise.base_key`. `head` is how far its cuts are looked for, from what they
    needed lately; it changes no token. `whole`: its rows can be read on from, as behind a stop.
    """

    opening: Opening
    seat: Seat
    rows: int
    whole: bool = True
    base: int = field(init=False)
    head: int = field(init=False)
    end: int = field(init=False)
    needed: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.end = len(self.opening.prompt) + self.opening.most
        top_k = self.opening.sampling.top_k
        self.base = noise.base_key(self.opening.seed)
        self.head = head_for(top_k) if top_k else sampling.OPEN_HEAD

    def learn(self, needed: int) -> None:
        """What a draw needed; 0 if it has no cuts that look at the order."""
        if needed:
            self.needed = most = max(needed, self.needed * MEMORY)
            self.head = head_for(max(self.opening.sampling.top_k, int(SPARE * most)))

    def read(self, piece: Piece) -> Read:
        """What is read of a piece's rows."""
        stops = (*self.opening.marks, len(self.opening.prompt))
        stop = min(stop for stop in stops if stop >= piece.end)
        return Read(piece.end - piece.start, stop - piece.end, piece.logprobs is not None)


# How fast what a draw needed is forgotten, and how much more than that is looked at.
MEMORY, SPARE = 0.95, 1.25


def head_for(needed: int, growth: int = sampling.GROWTH) -> int:
    """The least width of a sorted head that holds so many."""
    head = sampling.HEAD
    while head < needed:
        head *= growth
    return head


class Want(NamedTuple):
    """A row that something is asked of: the stream, and the absolute position drawn for it."""

    stream: Stream
    position: int


class Asked:
    """What a step's rows and streams ask for beyond a forward, gathered once."""

    def __init__(
        self,
        limits: Limits,
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
        self.limits, self.rows, self.masks, self.streams = limits, rows, masks, streams
        self.whole = whole and limits.whole
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

    def head(self) -> int:
        """How far the cuts are looked for, by what the streams have learned so far; 0 of none."""
        if not (self.cut or self.ask_cut):
            return 0
        head = max(
            stream.head
            for stream in (*self.streams, *filter(None, self.asking))
            if has_cuts(stream.opening.sampling)
        )
        if self.whole:
            # Fewer widths, fewer shapes.
            head = head_for(head, sampling.GROWTH**2)
        return min(head, self.limits.vocab_size)

    def shape(self, base: Shape, exact: bool) -> Shape:
        vocab_size = self.limits.vocab_size
        reach = Reach(
            self.head(),
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
        if self.limits.block:
            return (whole,)
        if self.whole:
            return (whole,) * self.limits.most
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
        seen = max(self.seen[place] for place in self.asks if place < len(self.seen))
        return batch.width_of(min(seen + self.further(), self.limits.context), self.limits.context)

    def further(self) -> int:
        """Rows that drafts see beyond the windows."""
        return self.limits.block or len(self.depths())

    def room(self, shape: Shape) -> int:
        """How many rows every window may see in a shape of these widths."""
        if not self.asks or shape.chain_width == self.limits.context:
            return shape.width
        return min(shape.width, shape.chain_width - self.further())

    def begins(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows with noise that are some stream's, and what their keys begin with."""
        rows = [row for row in self.noisy if row in self.rows]
        begins = [(self.rows[row].stream.base + keyed.STEP) & keyed.MASK for row in rows]
        return np.array(rows, dtype=np.int64), np.array(begins, dtype=np.uint64)

    def write_keys(self, blocks: Mapping[str, np.ndarray]) -> None:
        rows, begin_N = self.begins()
        if len(rows):
            behind = [self.rows[row].position - 1 for row in rows.tolist()]
            key_N = np.empty(len(rows), dtype=np.int64)
            noise.write_keys(begin_N, np.array(behind, dtype=np.int64), key_N)
            places = [place for place, row in enumerate(self.noisy) if row in self.rows]
            blocks["noisy"][1, places] = key_N

    def told_places(self) -> dict[int, int]:
        """Where each told row stands among them."""
        return {row: place for place, row in enumerate(self.told)}

    def write(self, blocks: Mapping[str, np.ndarray]) -> None:
        """All but the keys of rows with noise: those are of the rows' positions."""
        if self.noisy:
            given = [
                (0, want.stream.opening.sampling)
                if (want := self.rows.get(row)) is not None
                else None
                for row in self.noisy
            ]
            write_noisy(blocks["noisy"], self.noisy, given)
            write_cuts(blocks, "cut", self.cut, [one and one[1] for one in given])
        if self.masked:
            blocks["masked"][:] = self.masked
            write_masks(blocks["mask"], self.masked, self.masks, self.limits.mask_bytes)
        if self.told:
            blocks["told"][:] = self.told
        if self.asks:
            blocks["ask"][0] = self.asks
            blocks["ask"][1] = [self.wants[place] for place in self.asks]
            blocks["ask"][2] = [stream.end if stream else 0 for stream in self.asking]
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
