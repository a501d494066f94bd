"""State buffers of all streams: lanes, shared pages and kept states.

A stream claims a lane and all the pages its prompt and reply can need when it opens, so that
nothing can run out later. Pages are counted: a kept state shares the full pages of its prompt and
copies the rows of a page it has not filled, and what is not paged. The last lane and the last page
belong to nobody; padding rows use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tensorfold.core.engine_api import Memory
from tensorfold.core.errors import NoRoom
from tensorfold.core.state_spec import PerToken, Ring, StateSpec


@dataclass(kw_only=True, slots=True)
class Seat:
    """What an open stream has claimed."""

    lane: int
    pages: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A kept state: shared pages, and copies of the lane's rings and fixed states and of the rows
    of the page after the shared ones."""

    prompt: tuple[int, ...]
    pages: tuple[int, ...]
    copies: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]
    bytes: int


@dataclass(kw_only=True, slots=True)
class Storage:
    """Buffers by name and who holds what.

    `table_LP` maps a lane's pages, numpy int64; `table` is the same on the device, and on the CPU
    the same memory: it changes when a lane is claimed or released, and never inside a forward.
    """

    spec: StateSpec
    lanes: int
    pages: int
    buffers: dict[str, Tensor]
    table_LP: np.ndarray
    table: Tensor
    free_lanes: list[int]
    free_pages: list[int]
    holders: list[int]
    kept: dict[int, Kept] = field(default_factory=dict)
    next_kept: int = 1
    kept_bytes: int = 0
    peak: int = 0

    @property
    def spare_lane(self) -> int:
        return self.lanes

    @property
    def spare_page(self) -> int:
        return self.pages

    def per_lane(self) -> list[Tensor]:
        """Buffers whose first axis is the lane."""
        return [
            self.buffers[entry.name]
            for entry in self.spec.entries
            if not isinstance(entry, PerToken)
        ]

    def page_rows(self, page: int, tokens: int) -> list[Tensor]:
        """The rows of a page's first `tokens`, of each paged buffer."""
        found = []
        for entry in self.spec.entries:
            if isinstance(entry, PerToken):
                first = page * self.spec.page // entry.every
                found.append(self.buffers[entry.name][first : first + tokens // entry.every])
        return found

    def claim(self, tokens: int, shared: Sequence[int] = ()) -> Seat:
        """A lane and pages for `tokens`, of which the first ones are shared; raises `NoRoom`."""
        fresh = -(-tokens // self.spec.page) - len(shared)
        if not self.free_lanes or fresh > len(self.free_pages):
            raise NoRoom
        lane = self.free_lanes.pop()
        pages = [*shared, *(self.free_pages.pop() for _ in range(fresh))]
        for page in pages:
            self.holders[page] += 1
        self.seat_pages(lane, pages)
        self.clear(lane)
        self.peak = max(self.peak, self.used())
        return Seat(lane=lane, pages=pages)

    def clear(self, lane: int) -> None:
        """A lane's rings and fixed states as a new stream finds them."""
        # One operation, however many buffers there are; it takes no empty list.
        if own := self.per_lane():
            with torch.inference_mode():
                torch._foreach_zero_([buffer[lane] for buffer in own])

    def seat_pages(self, lane: int, pages: Sequence[int]) -> None:
        self.table_LP[lane] = self.spare_page
        self.table_LP[lane, : len(pages)] = pages
        if self.table.device.type != "cpu":
            with torch.inference_mode():
                self.table[lane].copy_(torch.from_numpy(self.table_LP[lane]))

    def release(self, seat: Seat) -> None:
        self.seat_pages(seat.lane, ())
        self.free_lanes.append(seat.lane)
        self.let_go(seat.pages)

    def let_go(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.holders[page] -= 1
            if not self.holders[page]:
                self.free_pages.append(page)

    def keep(self, seat: Seat, prompt: tuple[int, ...]) -> tuple[int, Kept]:
        """Keep the state after `prompt`. Later rows of its stream fall into the last page that it
        has not filled, so that page's rows are copied."""
        full, rest = divmod(len(prompt), self.spec.page)
        assert not (rest and self.spec.blocks), (len(prompt), self.spec.page)
        pages = tuple(seat.pages[:full])
        for page in pages:
            self.holders[page] += 1
        copies = tuple(buffer[seat.lane].clone() for buffer in self.per_lane())
        rows = (
            tuple(part.clone() for part in self.page_rows(seat.pages[full], rest)) if rest else ()
        )
        size = sum(copy.numel() * copy.element_size() for copy in (*copies, *rows))
        kept = Kept(prompt=prompt, pages=pages, copies=copies, rows=rows, bytes=size)
        number = self.next_kept
        self.next_kept += 1
        self.kept[number] = kept
        self.kept_bytes += size
        self.peak = max(self.peak, self.used())
        return number, kept

    def restore(self, seat: Seat, kept: Kept) -> None:
        for buffer, copy in zip(self.per_lane(), kept.copies, strict=True):
            buffer[seat.lane].copy_(copy)
        if kept.rows:
            full, rest = divmod(len(kept.prompt), self.spec.page)
            own = self.page_rows(seat.pages[full], rest)
            for rows, copied in zip(own, kept.rows, strict=True):
                rows.copy_(copied)

    def drop(self, number: int) -> None:
        kept = self.kept.pop(number)
        self.kept_bytes -= kept.bytes
        self.let_go(kept.pages)

    def used(self) -> int:
        pages = self.pages - len(self.free_pages)
        lanes = self.lanes - len(self.free_lanes)
        paged = pages * self.spec.bytes_per_page()
        return paged + lanes * self.spec.bytes_per_lane() + self.kept_bytes

    def memory(self) -> Memory:
        used = self.used()
        total = self.pages * self.spec.bytes_per_page() + self.lanes * self.spec.bytes_per_lane()
        return Memory(used=used, free=max(0, total - used), peak=max(self.peak, used))


def bytes_needed(spec: StateSpec, lanes: int, pages: int) -> int:
    return (pages + 1) * spec.bytes_per_page() + (lanes + 1) * spec.bytes_per_lane()


def allocate(
    spec: StateSpec, *, lanes: int, context: int, kept_bytes: int, device: torch.device
) -> Storage:
    """Buffers for `lanes` whole contexts, with more pages for kept states."""
    context_pages = -(-context // spec.page)
    extra = kept_bytes // spec.bytes_per_page() if spec.bytes_per_page() else 0
    pages = lanes * context_pages + extra
    buffers = {}
    for entry in spec.entries:
        shape: tuple[int, ...]
        if isinstance(entry, PerToken):
            shape = ((pages + 1) * spec.page // entry.every, entry.width)
        elif isinstance(entry, Ring):
            shape = (lanes + 1, entry.rows, entry.width)
        else:
            shape = (lanes + 1, *entry.shape)
        dtype = getattr(torch, spec.dtype_of(entry))
        buffers[entry.name] = torch.zeros(shape, dtype=dtype, device=device)
    table_LP = np.full((lanes + 1, context_pages), pages, dtype=np.int64)
    return Storage(
        spec=spec,
        lanes=lanes,
        pages=pages,
        buffers=buffers,
        table_LP=table_LP,
        table=torch.from_numpy(table_LP).to(device),
        free_lanes=list(range(lanes - 1, -1, -1)),
        free_pages=list(range(pages - 1, -1, -1)),
        holders=[0] * (pages + 1),
    )
