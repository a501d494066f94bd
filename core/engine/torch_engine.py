"""The engine: records in, a family's model on a backend's ops, tokens out.

A call's step is run at launch where the device has a queue; elsewhere work happens in `land()`, so
that what is delivered between launch and landing has left before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized

import numpy as np
import torch
from torch import Tensor

from tensorfold.core.engine import landing
from tensorfold.core.engine.ahead import Ahead, Launched
from tensorfold.core.engine.asking import Limits, Stream
from tensorfold.core.engine.drafting import BlockDrafting, Drafting, Place
from tensorfold.core.engine.flight import OpenFlight
from tensorfold.core.engine.group import Group, share_of
from tensorfold.core.engine.ordering import Coming, Order, Ordering
from tensorfold.core.engine.packing import Exact, Shape, Sizes
from tensorfold.core.engine.prompting import Prompting
from tensorfold.core.engine.runner import AtOnce, Run, Runner
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
from tensorfold.core.ops import Ops


class TorchEngine:
    """An `engine_api.Engine` over one model; `tile` is the backend's row tile, `ops` draw tokens.

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
        ops: Ops,
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
        # A file is looked at before each round that is asked for.
        self.ahead = Ahead(may=model.captures and not files)
        # What the last round's draws needed, to be learned from.
        self.needed: landing.Needed | None = None
        self.runner = runner or AtOnce(Exact(tile))
        self.ops = ops
        place = Place(storage=storage, ops=ops, tile=tile, context=info.context)
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
            ops=ops,
            vocab_size=info.vocab_size,
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
            share=share_of(group),
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
        self.check_files()
        ahead = self.ahead.taken(windows, self.streams)
        if ahead is not None:
            flight = OpenFlight(self, lambda: self.join_round(windows, ahead))
        else:
            if self.ahead.round is not None:
                self.land_ahead(self.ahead.round)
            given = self.ahead.given(windows)
            rest = [window for window in windows if window.stream not in given]
            coming = self.ordering.coming(self.streams, rest)
            if not coming.foreseen:
                self.check_windows(rest, given)
            flight = OpenFlight(self, lambda: self.launch_round(windows, rest, coming, given))
        self.flying = flight
        return flight

    def join_round(self, windows: Sequence[Window], ahead: Launched) -> Callable[[], list[Landed]]:
        """The flight of a round that is under way; what has time beside it is done now."""
        self.look_ahead()
        goes_on = len(windows) == len(ahead.windows) and all(one.goes_on for one in windows)
        asked = {window.stream for window in windows}
        return lambda: [
            landed for landed in self.finish_round(ahead, goes_on) if landed.stream in asked
        ]

    def land_ahead(self, ahead: Launched) -> None:
        """Wait for a round that runs ahead where another one is asked for."""
        self.ahead.round = None
        self.teach()
        self.ahead.keep(ahead, self.land_windows(ahead, ahead.wait()), self.streams)

    def check_windows(self, windows: Sequence[Window], given: Sized) -> None:
        rows = 0
        for window in windows:
            stream, own = self.streams[window.stream], len(window.tokens)
            rows += own
            assert window.forced < own <= self.info.window_rows, window
            assert stream.rows >= len(stream.opening.prompt), (window, stream.rows)
            # Storage is claimed for the prompt and the reply; the last token needs no row.
            assert stream.rows + own <= stream.end, (window, stream.rows)
        assert rows or given, "a round has rows"
        assert rows <= self.info.round_rows, (rows, self.info.round_rows)

    def launch_round(
        self,
        windows: Sequence[Window],
        rest: Sequence[Window],
        coming: Coming,
        given: Mapping[int, Landed],
    ) -> Callable[[], list[Landed]]:
        """Run the `rest` of the windows, whose results are not there yet."""
        if not rest:
            return lambda: [given[window.stream] for window in windows]
        launched = self.launch_windows(rest, coming, exact=False)
        if not given:
            goes_on = all(window.goes_on for window in windows)
            return lambda: self.finish_round(launched, goes_on)

        def finish() -> list[Landed]:
            found = {**given, **{one.stream: one for one in self.finish_round(launched, False)}}
            return [found[window.stream] for window in windows]

        return finish

    def finish_round(self, launched: Launched, goes_on: bool) -> list[Landed]:
        """Wait for a round and give its results; its next one is launched first if all go on."""
        next_round = self.next_round(launched) if goes_on else None
        words = launched.wait()
        if next_round is not None:
            words = next_round(words)
        found = self.land_windows(launched, words)
        if None in found:
            # Their state is as it was: the same windows again, every draw sure.
            held = [
                window
                for window, stream, one in zip(launched.windows, launched.own, found, strict=True)
                if one is None and self.streams.get(window.stream) is stream
            ]
            self.redone += len(held)
            again = {}
            if held:
                coming = self.ordering.coming(self.streams, held)
                sure = self.launch_windows(held, coming, exact=True)
                again = {one.stream: one for one in self.land_windows(sure, sure.wait()) if one}
            found = [
                again.get(window.stream) if one is None else one
                for window, one in zip(launched.windows, found, strict=True)
            ]
        return [landed for landed in found if landed is not None]

    def next_round(self, launched: Launched) -> Callable[[np.ndarray], np.ndarray] | None:
        """What launches the round after one, if it is all foreseen, on that one's words. Gives them
        where they last: those of a replay are written by the next."""
        kept = self.ordering.foreseen(launched.own)
        if kept is None or not self.ahead.may:
            return None
        ready = self.runner.ready(kept.order.words, *self.step_of(kept.order))
        return None if ready is None else self.ahead.launching(launched, kept, ready)

    def launch_windows(self, windows: Sequence[Window], coming: Coming, *, exact: bool) -> Launched:
        order = self.ordering.round(windows, coming, exact)
        step, shape, idle = self.step_of(order)
        captures = self.model.captures and not exact
        wait = self.runner.run(order.words, step, shape if captures else None, idle)
        if exact:
            self.teach()
        else:
            self.look_ahead()
        return Launched(order, windows, coming.own, wait)

    def step_of(self, order: Order) -> tuple[Run, Shape, Callable[[], np.ndarray]]:
        return (
            lambda words: self.step.round(words, order.shape),
            order.shape,
            lambda: self.ordering.idle(order.shape),
        )

    def look_ahead(self) -> None:
        """What has time while the device works is done then, and not between two rounds."""
        self.teach()
        self.ordering.foresee()

    def teach(self) -> None:
        if self.needed is not None:
            self.needed.teach()
            self.needed = None

    def land_windows(self, launched: Launched, words: np.ndarray) -> list[Landed | None]:
        """Results, none for a window whose draw was unsure."""
        order, windows, own, _ = launched
        found, needed = landing.landed(order, words, own, windows, self.block)
        if needed is not None:
            self.needed = needed
        return found

    def drop(self, saved: Saved) -> None:
        self.storage.drop(saved.id)

    def close(self, stream: int) -> None:
        assert self.flying is None, "a flight is open"
        self.ahead.forget(stream)
        self.storage.release(self.streams.pop(stream).seat)

    def memory(self) -> Memory:
        return self.storage.memory()

    def shutdown(self) -> None:
        if self.ahead.round is not None:
            self.ahead.round.wait()
            self.ahead = Ahead(may=False)
        self.streams.clear()
