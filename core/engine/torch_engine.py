"""The engine: records in, a family's model on a backend's ops, tokens out.

A call's step is run at launch where the device has a queue; elsewhere work happens in `land()`, so
that what is delivered between launch and landing has left before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor

from tensorfold.core.engine import landing, noise
from tensorfold.core.engine.asking import Limits, Stream
from tensorfold.core.engine.drafting import BlockDrafting, Drafting, Place
from tensorfold.core.engine.group import Group
from tensorfold.core.engine.ordering import Coming, Ordering
from tensorfold.core.engine.packing import Exact, Shape, Sizes
from tensorfold.core.engine.prompting import Prompting
from tensorfold.core.engine.runner import AtOnce, Runner
from tensorfold.core.engine.state import Kept, Storage
from tensorfold.core.engine.step import Step
from tensorfold.core.engine.table_files import TableFile
from tensorfold.core.engine_api import (
    Filled,
    Flight,
    Info,
    Landed,
    Memory,
    Opened,
    Opening,
    Piece,
    Saved,
    Window,
)
from tensorfold.core.errors import Refused
from tensorfold.core.family_api import BlockDrafter, Drafter, Model, ReadsAhead
from tensorfold.core.share import Share

Result = TypeVar("Result")


class OpenFlight(Generic[Result]):
    """A flight: `launch` gives what lands it. It is called at once where the device has a queue."""

    def __init__(
        self, engine: TorchEngine, launch: Callable[[], Callable[[], list[Result]]]
    ) -> None:
        self.engine = engine
        self.launch = launch
        self.finish: Callable[[], list[Result]] | None = None
        if engine.runner.queued:
            self.finish = launch()

    def land(self) -> Sequence[Result]:
        assert self.engine.flying is self, "this flight has landed"
        self.engine.flying = None
        finish = self.finish or self.launch()
        return finish()


class TorchEngine:
    """An `engine_api.Engine` over one model; `tile` is the backend's row tile.

    `files` are those that tables are read from while it serves: rows of prompts to come are read
    ahead. With `shortcut` the model is told what of a prompt is read, and may leave out the rest.
    `redone` counts the draws that needed more reach and were made again. `group` is the ranks that
    make the same calls, where there are several.
    """

    def __init__(
        self,
        *,
        info: Info,
        model: Model,
        storage: Storage,
        tile: int,
        drafter: Drafter | BlockDrafter | None = None,
        runner: Runner | None = None,
        group: Group | None = None,
        shortcut: bool = True,
        files: Sequence[TableFile] = (),
    ) -> None:
        self.info = info
        self.group = group
        self.model = model
        self.files = files
        self.reader = model if files and isinstance(model, ReadsAhead) else None
        self.storage = storage
        self.tile = tile
        self.streams: dict[int, Stream] = {}
        self.flying: object | None = None
        self.redone = 0
        # What the last round's draws needed, to be learned from.
        self.needed: landing.Needed | None = None
        self.runner = runner or AtOnce(Exact(tile))
        device = storage.table.device
        self.steps_V = noise.token_steps(info.vocab_size, device)
        place = Place(storage=storage, steps_V=self.steps_V, tile=tile, context=info.context)
        self.drafting: Drafting | BlockDrafting | None = None
        if isinstance(drafter, BlockDrafter):
            self.drafting = BlockDrafting(drafter=drafter, place=place)
        elif drafter is not None:
            self.drafting = Drafting(drafter=drafter, place=place)
        sizes = Sizes(grid=storage.spec.page, tile=tile, mask_bytes=-(-info.vocab_size // 8))
        self.step = Step(
            model=model,
            storage=storage,
            sizes=sizes,
            steps_V=self.steps_V,
            drafting=self.drafting,
        )
        self.block = self.drafting.block if self.drafting else 0
        buckets = self.runner.buckets
        limits = Limits(
            context=info.context,
            vocab_size=info.vocab_size,
            mask_bytes=sizes.mask_bytes,
            most=info.drafts if self.drafting else 0,
            block=self.block,
            whole=buckets.whole,
        )
        self.ordering = Ordering(storage=storage, sizes=sizes, limits=limits, buckets=buckets)
        self.prompting = Prompting(
            storage=storage,
            sizes=sizes,
            limits=limits,
            buckets=buckets,
            shortcut=shortcut,
            captures=model.captures,
            share=Share() if group is None else group.share,
        )
        # The hidden rows that prompts of a shape leave, where a replay leaves them.
        self.hidden: dict[Shape, list[Tensor]] = {}

    @torch.inference_mode()
    def open(self, opening: Opening) -> Opened:
        assert opening.stream not in self.streams, opening.stream
        assert opening.prompt, opening.stream
        total = len(opening.prompt) + opening.most
        if total > self.info.context:
            raise Refused(
                f"{len(opening.prompt)} prompt tokens and {opening.most} of reply are more than "
                f"the context of {self.info.context}"
            )
        kept, lost = self.kept_for(opening)
        seat = self.storage.claim(total, kept.pages if kept else ())
        if kept:
            self.storage.restore(seat, kept)
        rows = len(kept.prompt) if kept else 0
        self.streams[opening.stream] = Stream(opening=opening, seat=seat, rows=rows)
        self.read_ahead(opening.prompt, rows)
        return Opened(stream=opening.stream, cached=rows, lost=lost)

    def read_ahead(self, prompt: tuple[int, ...], start: int) -> None:
        """The rows of a prompt that may run next are expected, where tables are read from files."""
        if self.reader is not None and start < len(prompt):
            self.reader.expect(prompt, start, min(start + self.info.chunk_rows, len(prompt)))

    def check_files(self) -> None:
        for file in self.files:
            file.check()

    def kept_for(self, opening: Opening) -> tuple[Kept | None, str | None]:
        """The state that an opening resumes, or why it cannot be restored."""
        if opening.resume is None:
            return None, None
        kept = self.storage.kept.get(opening.resume.id)
        if kept is None:
            return None, f"kept state {opening.resume.id} is not here"
        rows = len(kept.prompt)
        if rows >= len(opening.prompt) or opening.prompt[:rows] != kept.prompt:
            return None, f"kept state {opening.resume.id} is not of this prompt's beginning"
        return kept, None

    def fill(self, pieces: Sequence[Piece]) -> Flight[Filled]:
        assert self.flying is None, "one flight is open at a time"
        rows = sum(piece.end - piece.start for piece in pieces)
        most = self.info.chunk_rows if len(pieces) == 1 else self.info.pack_rows
        assert 0 < rows <= most, (rows, most)
        for piece in pieces:
            stream = self.streams[piece.stream]
            end = len(stream.opening.prompt)
            assert piece.start == stream.rows < piece.end <= end, (piece, stream.rows, end)
            assert piece.end == end or piece.end % self.info.grid == 0, (piece, end)
            assert stream.whole or piece.logprobs is None, (piece, "rows before it ran unread")
        self.check_files()
        for piece in pieces:
            self.read_ahead(self.streams[piece.stream].opening.prompt, piece.end)
        flight = OpenFlight(self, lambda: self.launch_fill(pieces))
        self.flying = flight
        return flight

    @torch.inference_mode()
    def launch_fill(self, pieces: Sequence[Piece]) -> Callable[[], list[Filled]]:
        order = self.prompting.order(self.streams, pieces, exact=False)
        shape = order.shape
        hidden: list[Tensor] = self.hidden.setdefault(shape, []) if order.rounded else []

        def step(words: Tensor) -> Tensor:
            hidden_RD, results = self.step.prompt(words, shape)
            hidden[:] = [hidden_RD]
            return results

        wait = self.runner.run(
            order.words,
            step,
            shape if order.rounded else None,
            lambda: self.prompting.idle(shape),
        )

        @torch.inference_mode()
        def finish() -> list[Filled]:
            found = landing.ended(order, wait(), self.streams, pieces, self.block)
            if found is None:
                found = self.fill_again(pieces, hidden[0])
            return [self.filled(piece, one) for piece, one in zip(pieces, found, strict=True)]

        return finish

    def fill_again(self, pieces: Sequence[Piece], hidden_RD: Tensor) -> list[landing.Ended]:
        """What pieces give after their hidden rows, every draw reaching the whole vocabulary."""
        self.redone += len(pieces)
        order = self.prompting.order(self.streams, pieces, exact=True)
        wait = self.runner.run(
            order.words,
            lambda words: self.step.finish(words, order.shape, hidden_RD),
            None,
            lambda: order.words,
        )
        found = landing.ended(order, wait(), self.streams, pieces, self.block)
        assert found is not None, pieces
        return found

    def filled(self, piece: Piece, found: landing.Ended) -> Filled:
        if found.fault is not None:
            return Filled(stream=piece.stream, fault=found.fault)
        stream = self.streams[piece.stream]
        opening = stream.opening
        stream.rows, stream.whole = piece.end, stream.read(piece).last
        saved = None
        if piece.end in opening.marks:
            number, kept = self.storage.keep(stream.seat, opening.prompt[: piece.end])
            saved = Saved(id=number, rows=piece.end, bytes=kept.bytes)
        ends = piece.end == len(opening.prompt)
        return Filled(
            stream=piece.stream,
            token=found.token if ends else None,
            logprob=found.logprob,
            saved=saved,
            rows=found.rows,
            drafts=found.drafts.tokens,
            chances=found.drafts.chances,
        )

    def round(self, windows: Sequence[Window]) -> Flight[Landed]:
        assert self.flying is None, "one flight is open at a time"
        coming = self.ordering.coming(self.streams, windows)
        if not coming.foreseen:
            self.check_windows(windows)
        self.check_files()
        flight = OpenFlight(self, lambda: self.launch_round(windows, coming))
        self.flying = flight
        return flight

    def check_windows(self, windows: Sequence[Window]) -> None:
        rows = 0
        for window in windows:
            stream, own = self.streams[window.stream], len(window.tokens)
            rows += own
            assert window.forced < own <= self.info.window_rows, window
            assert stream.rows >= len(stream.opening.prompt), (window, stream.rows)
            # Storage is claimed for the prompt and the reply; the last token needs no row.
            assert stream.rows + own <= stream.end, (window, stream.rows)
        assert 0 < rows <= self.info.round_rows, (rows, self.info.round_rows)

    def launch_round(self, windows: Sequence[Window], coming: Coming) -> Callable[[], list[Landed]]:
        wait = self.launch_windows(windows, coming, exact=False)

        def finish() -> list[Landed]:
            found = wait()
            if None in found:
                # Their state is as it was: the same windows again, every draw sure.
                held = [window for window, one in zip(windows, found, strict=True) if one is None]
                self.redone += len(held)
                sure = self.launch_windows(
                    held, self.ordering.coming(self.streams, held), exact=True
                )
                again = iter(sure())
                found = [next(again) if one is None else one for one in found]
            return cast("list[Landed]", found)

        return finish

    def launch_windows(
        self, windows: Sequence[Window], coming: Coming, *, exact: bool
    ) -> Callable[[], list[Landed | None]]:
        order = self.ordering.round(windows, coming, exact)
        wait = self.runner.run(
            order.words,
            lambda words: self.step.round(words, order.shape),
            None if exact or not self.model.captures else order.shape,
            lambda: self.ordering.idle(order.shape),
        )
        # What has time while the device works is done now, and not between two rounds.
        if self.needed is not None:
            self.needed.teach()
            self.needed = None
        if not exact:
            self.ordering.foresee()

        def land() -> list[Landed | None]:
            found, needed = landing.landed(order, wait(), coming.own, windows, self.block)
            if needed is not None:
                self.needed = needed
            return found

        return land

    def drop(self, saved: Saved) -> None:
        self.storage.drop(saved.id)

    def close(self, stream: int) -> None:
        assert self.flying is None, "a flight is open"
        self.storage.release(self.streams.pop(stream).seat)

    def memory(self) -> Memory:
        return self.storage.memory()

    def shutdown(self) -> None:
        self.streams.clear()
