"""What a fake engine is told to be: its limits, its troubles, its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorfold.core.engine_api import Info, Piece, Window

# Where a call can be watched or made to fail.
CALLS = ("open", "fill", "fill.land", "round", "round.land", "close", "drop")


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of the engine; `index` counts the calls of its kind, from 0."""

    kind: str
    index: int
    streams: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """Something that goes wrong in the calls of a kind that match `call` and `stream`, if given.

    `error` is raised before the call does anything; `fault` becomes the value that the stream (the
    first one of the call, when none is named) gets instead of its result.
    """

    kind: str
    call: int | None = None
    stream: int | None = None
    error: BaseException | None = None
    fault: str | None = None

    def __post_init__(self) -> None:
        assert self.kind in CALLS, self.kind
        assert (self.error is None) != (self.fault is None), self

    def hits(self, call: Call) -> bool:
        if self.kind != call.kind or self.call not in (None, call.index):
            return False
        return self.stream is None or self.stream in call.streams


class VirtualClock:
    """Seconds that pass only when told to: `clock()` reads them, `wait` lets them pass."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def free_of_cost(call: Call) -> float:
    return 0.0


def no_wait(seconds: float) -> None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class FakeOptions:
    """Limits and costs as in `Info`; `fills` are its `fill_*` fields. `round_rows` 0: every full
    window fits.

    Memory holds `room_lanes` streams and `room_tokens` tokens of streams and kept states together
    (0: as many as are asked). Drafts are wrong about one time in `wrong_in`. `hook` sees every call
    before it does anything. A call takes `cost(call)` seconds, spent in `wait` when it lands.
    """

    lanes: int = 8
    context: int = 4096
    chunk_rows: int = 64
    round_rows: int = 0
    window_rows: int = 8
    grid: int = 16
    passes: int = 0
    pack_rows: int = 0
    drafts: int = 0
    wrong_in: int = 5
    round_costs: tuple[tuple[int, float], ...] = ()
    draft_costs: tuple[tuple[int, float], ...] = ()
    fills: Mapping[str, Any] = field(default_factory=dict)
    room_lanes: int = 0
    room_tokens: int = 0
    troubles: tuple[Trouble, ...] = ()
    hook: Callable[[Call], None] | None = None
    cost: Callable[[Call], float] = free_of_cost
    wait: Callable[[float], None] = no_wait


def info_of(options: FakeOptions, vocab: int) -> Info:
    return Info(
        backend="fake",
        family="none",
        device="none",
        dtype="integers",
        identity="fake",
        vocab_size=vocab,
        lanes=options.lanes,
        context=options.context,
        chunk_rows=options.chunk_rows,
        round_rows=options.round_rows or options.lanes * options.window_rows,
        window_rows=options.window_rows,
        grid=options.grid,
        passes=options.passes,
        pack_rows=options.pack_rows,
        drafts=options.drafts,
        round_costs=options.round_costs,
        draft_costs=options.draft_costs,
        bytes_per_token=1,
        **options.fills,
    )
