"""A whole engine without torch, the scripted twin of a real one.

It keeps each stream's true history and rolls it back like a cache, holds its caller to the letter
of `engine_api`, and fails where it is told to. A broken rule is an assertion and a line in `slips`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tensorfold.backends.fake import model
from tensorfold.backends.fake.options import Call, FakeOptions, info_of
from tensorfold.core.engine_api import (
    Filled,
    Info,
    Landed,
    Memory,
    Opened,
    Opening,
    Piece,
    Saved,
    TokenLogprob,
    Window,
    nobody,
)
from tensorfold.core.errors import EngineFault, NoRoom, Refused

Result = TypeVar("Result", Filled, Landed)


class FakeStream:
    """An open stream: the rows in its cache with their sum, the token that is not in it yet, and
    whether its last window said that it goes on."""

    def __init__(self, opening: Opening, cached: Sequence[int]) -> None:
        self.opening = opening
        self.cache = list(cached)
        self.total = sum(cached)
        self.pending: int | None = None
        self.goes_on = False

    @property
    def claimed(self) -> int:
        return len(self.opening.prompt) + self.opening.most

    def append(self, tokens: Sequence[int]) -> None:
        self.cache.extend(tokens)
        self.total += sum(tokens)

    def roll_back(self, rows: int) -> None:
        self.total -= sum(self.cache[rows:])
        del self.cache[rows:]


class FakeFlight(Generic[Result]):
    def __init__(self, land: Callable[[], list[Result]]) -> None:
        self.work: Callable[[], list[Result]] = land

    def land(self, waits: Callable[[], bool] = nobody) -> list[Result]:
        return self.work()


class FakeEngine:
    """See the module. `streams` and `kept` are its whole state; `slips` the rules broken so far."""

    def __init__(self, options: FakeOptions) -> None:
        self.options = options
        self.info: Info = info_of(options, model.VOCAB)
        self.streams: dict[int, FakeStream] = {}
        self.kept: dict[int, tuple[int, ...]] = {}
        self.slips: list[str] = []
        self.counts: dict[str, int] = {}
        self.saves = 0
        self.peak = 0
        self.in_flight = False
        self.dead = False

    # -- the five calls ------------------------------------------------------------------------

    def open(self, opening: Opening) -> Opened:
        self.begin("open", (opening.stream,))
        self.check_opening(opening)
        resumed, lost = self.resumed(opening)
        self.find_room(len(opening.prompt) + opening.most)
        self.streams[opening.stream] = FakeStream(opening, resumed)
        self.peak = max(self.peak, self.claimed())
        return Opened(stream=opening.stream, cached=len(resumed), lost=lost)

    def fill(self, pieces: Sequence[Piece]) -> FakeFlight[Filled]:
        named = tuple(piece.stream for piece in pieces)
        self.begin("fill", named, pieces=tuple(pieces))
        self.check_pieces(pieces)
        self.in_flight = True

        def land() -> list[Filled]:
            call = self.begin("fill.land", named, pieces=tuple(pieces))
            hurt = self.hurt(call)
            return [
                Filled(stream=piece.stream, fault=hurt[piece.stream])
                if piece.stream in hurt
                else self.run_piece(piece)
                for piece in pieces
            ]

        return FakeFlight(land)

    def round(self, windows: Sequence[Window]) -> FakeFlight[Landed]:
        named = tuple(window.stream for window in windows)
        self.begin("round", named, windows=tuple(windows))
        self.check_windows(windows)
        self.in_flight = True

        def land() -> list[Landed]:
            call = self.begin("round.land", named, windows=tuple(windows))
            hurt = self.hurt(call)
            return [
                Landed(stream=window.stream, fault=hurt[window.stream])
                if window.stream in hurt
                else self.run_window(window)
                for window in windows
            ]

        return FakeFlight(land)

    def drop(self, saved: Saved) -> None:
        self.begin("drop", ())
        self.must(saved.id in self.kept, "drop of %s, which is not kept", saved)
        del self.kept[saved.id]

    def close(self, stream: int) -> None:
        self.begin("close", (stream,))
        self.must(stream in self.streams, "close of stream %d, which is not open", stream)
        del self.streams[stream]

    def memory(self) -> Memory:
        used = self.claimed()
        room = self.options.room_tokens or self.info.lanes * self.info.context
        return Memory(used=used, free=max(0, room - used), peak=self.peak)

    def shutdown(self) -> None:
        self.dead = True

    # -- the rules -----------------------------------------------------------------------------

    def begin(
        self,
        kind: str,
        streams: tuple[int, ...],
        pieces: tuple[Piece, ...] = (),
        windows: tuple[Window, ...] = (),
    ) -> Call:
        """Count a call, show it to the hook, raise what the script has for it, spend its time."""
        lands = kind.endswith(".land")
        self.must(not self.dead, "%s on an engine that was lost or shut down", kind)
        self.must(self.in_flight == lands, "%s with a flight open: %s", kind, self.in_flight)
        self.in_flight = False
        index = self.counts.get(kind, 0)
        self.counts[kind] = index + 1
        call = Call(kind=kind, index=index, streams=streams, pieces=pieces, windows=windows)
        try:
            if self.options.hook is not None:
                self.options.hook(call)
            for trouble in self.options.troubles:
                if trouble.error is not None and trouble.hits(call):
                    raise trouble.error
        except (EngineFault, NoRoom, Refused):
            raise
        except BaseException:
            self.dead = True
            raise
        self.options.wait(self.options.cost(call))
        return call

    def must(self, holds: bool, words: str, *values: object) -> None:
        if not holds:
            self.slips.append(words % values)
            raise AssertionError(words % values)

    def hurt(self, call: Call) -> dict[int, str]:
        """The streams of a call whose result is a fault, and its words."""
        hits = [t for t in self.options.troubles if t.fault is not None and t.hits(call)]
        return {
            call.streams[0] if trouble.stream is None else trouble.stream: trouble.fault or ""
            for trouble in hits
        }

    def check_opening(self, opening: Opening) -> None:
        tokens = len(opening.prompt) + opening.most
        info = self.info
        self.must(opening.stream not in self.streams, "stream %d is open", opening.stream)
        self.must(len(opening.prompt) > 0 and opening.most > 0, "%s is empty", opening)
        self.must(tokens <= info.context, "%d tokens, context %d", tokens, info.context)
        self.must(all(0 <= t < info.vocab_size for t in opening.prompt), "a token is no id")
        self.must(len(self.streams) < info.lanes, "more than %d streams", info.lanes)
        opened = sum(stream.pending is None for stream in self.streams.values())
        self.must(not info.passes or opened < info.passes, "more than %d passes", info.passes)
        inside = all(0 < m < len(opening.prompt) and m % info.grid == 0 for m in opening.marks)
        self.must(inside, "marks are not on the grid inside the prompt: %s", opening)

    def check_pieces(self, pieces: Sequence[Piece]) -> None:
        info = self.info
        rows = sum(piece.end - piece.start for piece in pieces)
        most = info.chunk_rows if len(pieces) == 1 else info.pack_rows
        self.must(len({piece.stream for piece in pieces}) == len(pieces) > 0, "a stream twice")
        self.must(rows <= most, "%d rows in a forward of %d", rows, most)
        for piece in pieces:
            self.must(piece.stream in self.streams, "%s of a stream that is not open", piece)
            stream = self.streams[piece.stream]
            opening = stream.opening
            whole = piece.end == len(opening.prompt)
            self.must(stream.pending is None, "%s after the prompt went in", piece)
            self.must(len(stream.cache) == piece.start < piece.end, "%s starts elsewhere", piece)
            self.must(whole or piece.end % info.grid == 0, "%s ends off the grid", piece)
            self.must(piece.end <= len(opening.prompt), "%s passes the prompt's end", piece)
            cut = any(piece.start < mark < piece.end for mark in opening.marks)
            self.must(not cut, "%s runs over a mark of %s", piece, opening.marks)
            self.must(piece.end - piece.start <= info.chunk_rows, "%s is over a chunk", piece)
            self.must(piece.want <= info.drafts, "%s wants too many drafts", piece)

    def check_windows(self, windows: Sequence[Window]) -> None:
        info = self.info
        rows = sum(len(window.tokens) for window in windows)
        self.must(len({window.stream for window in windows}) == len(windows) > 0, "a stream twice")
        self.must(rows <= info.round_rows, "%d rows in a round of %d", rows, info.round_rows)
        for window in windows:
            self.must(window.stream in self.streams, "%s of a stream that is not open", window)
            stream = self.streams[window.stream]
            self.must(0 < len(window.tokens) <= info.window_rows, "%s has too many rows", window)
            self.must(window.tokens[0] == stream.pending, "%s: %s pends", window, stream.pending)
            end = len(stream.cache) + len(window.tokens)
            self.must(end < stream.claimed, "%s runs past row %d", window, stream.claimed)
            self.must(window.forced < len(window.tokens), "%s forces more than it has", window)
            self.must(len(window.masks) in (0, len(window.tokens)), "%s: masks by row", window)
            self.must(window.want <= info.drafts, "%s wants too many drafts", window)
            plain = Window(stream=window.stream, tokens=window.tokens[:1])
            self.must(not stream.goes_on or window == plain, "%s was not to ask anything", window)

    # -- storage -------------------------------------------------------------------------------

    def claimed(self) -> int:
        """Tokens of room taken; iterates over copies, since any thread may ask."""
        streams = sum(stream.claimed for stream in list(self.streams.values()))
        return streams + sum(len(rows) for rows in list(self.kept.values()))

    def find_room(self, tokens: int) -> None:
        lanes, room = self.options.room_lanes, self.options.room_tokens
        if room and tokens > room:
            raise Refused(f"{tokens} tokens never fit into room for {room}")
        if lanes and len(self.streams) >= lanes:
            raise NoRoom(f"there is room for {lanes} streams")
        if room and self.claimed() + tokens > room:
            raise NoRoom(f"{tokens} tokens do not fit beside {self.claimed()} of {room}")

    def resumed(self, opening: Opening) -> tuple[tuple[int, ...], str | None]:
        """The kept rows that an opening starts with, and why it has none though it asked."""
        if opening.resume is None:
            return (), None
        rows = self.kept.get(opening.resume.id)
        if rows is None:
            return (), f"state {opening.resume.id} is not kept"
        if len(rows) >= len(opening.prompt) or opening.prompt[: len(rows)] != rows:
            return (), f"state {opening.resume.id} is of another beginning"
        return rows, None

    # -- the work ------------------------------------------------------------------------------

    def run_piece(self, piece: Piece) -> Filled:
        stream = self.streams[piece.stream]
        opening = stream.opening
        rows = self.prompt_logprobs(stream, piece)
        stream.append(opening.prompt[piece.start : piece.end])
        saved = self.save(stream) if piece.end in opening.marks else None
        if piece.end < len(opening.prompt):
            return Filled(stream=piece.stream, saved=saved, rows=rows)
        token = model.drawn(stream.total, len(stream.cache), opening, piece.mask)
        stream.pending = token
        guesses = self.guesses(stream, piece.want)
        return Filled(
            stream=piece.stream,
            token=token,
            logprob=self.logprob(stream, stream.total, len(stream.cache), token),
            saved=saved,
            rows=rows,
            drafts=guesses,
            chances=self.chances(guesses),
        )

    def run_window(self, window: Window) -> Landed:
        """Write every row, accept from the front, roll the rest back."""
        stream = self.streams[window.stream]
        base, total = len(stream.cache), stream.total
        stream.append(window.tokens)
        tokens: list[int] = []
        logprobs: list[TokenLogprob | None] = []
        for row, given in enumerate(window.tokens):
            total += given
            following = window.tokens[row + 1] if row + 1 < len(window.tokens) else None
            if row < window.forced and following is not None:
                token = following
            else:
                mask = window.masks[row] if window.masks else None
                token = model.drawn(total, base + row + 1, stream.opening, mask)
            tokens.append(token)
            logprobs.append(self.logprob(stream, total, base + row + 1, token))
            if token != following:
                break
        stream.roll_back(base + len(tokens))
        stream.pending, stream.goes_on = tokens[-1], window.goes_on
        guesses = self.guesses(stream, window.want)
        return Landed(
            stream=window.stream,
            tokens=tuple(tokens),
            logprobs=tuple(value for value in logprobs if value is not None),
            drafts=guesses,
            chances=self.chances(guesses),
        )

    def logprob(
        self, stream: FakeStream, total: int, length: int, token: int
    ) -> TokenLogprob | None:
        asked = stream.opening.logprobs
        return None if asked is None else model.logprob(total, length, token, asked)

    def prompt_logprobs(self, stream: FakeStream, piece: Piece) -> tuple[TokenLogprob, ...]:
        if piece.logprobs is None:
            return ()
        prompt, total = stream.opening.prompt, stream.total
        rows = []
        for row in range(piece.start, min(piece.end, len(prompt) - 1)):
            total += prompt[row]
            rows.append(model.logprob(total, row + 1, prompt[row + 1], piece.logprobs))
        return tuple(rows)

    def guesses(self, stream: FakeStream, want: int) -> tuple[int, ...]:
        if not want:
            return ()
        assert stream.pending is not None
        total, length = stream.total + stream.pending, len(stream.cache) + 1
        return model.drafts(total, length, stream.opening, want, self.options.wrong_in)

    def chances(self, guesses: Sequence[int]) -> tuple[float, ...]:
        wrong = self.options.wrong_in
        return (1.0 - 1.0 / wrong if wrong else 1.0,) * len(guesses)

    def save(self, stream: FakeStream) -> Saved:
        self.saves += 1
        rows = tuple(stream.cache)
        self.kept[self.saves] = rows
        self.peak = max(self.peak, self.claimed())
        return Saved(id=self.saves, rows=len(rows), bytes=len(rows))
