"""The only door to a device: what the lane host and an engine say to each other.

Pure data and protocols; nothing here imports torch. Every record holds ids, numbers and bytes
only, so that a follower rank can replay it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankBytes:
    """Bytes of one rank once it is open: what its weights and its state take, tables in files and
    in host memory aside, and what its device's memory has left."""

    weights: int
    state: int
    free: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Info:
    """What is fixed once an engine is open; JSON-ready, shown at `/info`.

    rows and tokens are counts, bytes are bytes. `round_costs` holds milliseconds of rounds by their
    rows, ascending, as timed at the start: a round of rows in between costs what the next one does.
    `draft_costs` holds what proposing drafts adds, by the streams that ask. Either is empty where
    the engine did not time it, and counts as nothing then. `identity` is the receipt's `engine`: a
    hash of the version, the weights and the settings that change bits. `checks` holds the load-time
    checks by name: true, false, or none when not run here. `ops` says who implements each op.
    `skipped` counts tensors and bytes of a checkpoint's parts that are not served, by part.
    `rank_bytes` has an entry a rank, in rank order; `bytes_per_token` and `bytes_per_stream` are of
    this one.
    """

    backend: str
    family: str
    device: str
    dtype: str
    identity: str
    vocab_size: int
    lanes: int
    context: int
    chunk_rows: int
    round_rows: int
    window_rows: int
    grid: int
    ranks: int = 1
    passes: int = 0
    pack_rows: int = 0
    drafts: int = 0
    round_costs: tuple[tuple[int, float], ...] = ()
    draft_costs: tuple[tuple[int, float], ...] = ()
    fill_chunks: int = 0
    fill_many: bool = False
    fill_rounds: int = 1
    fill_cut_in: int = 0
    fill_drain: int = 0
    fill_pack: int = 0
    bytes_per_token: int = 0
    bytes_per_stream: int = 0
    checks: Mapping[str, bool | None] = field(default_factory=dict)
    ops: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rank_bytes: tuple[RankBytes, ...] = ()

    def __post_init__(self) -> None:
        assert self.chunk_rows % self.grid == 0, (self.chunk_rows, self.grid)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a token is drawn: logits are sorted, ties by the lowest id, then cut to `top_k`, divided
    by `temperature`, cut to `top_p` (the token that crosses it stays) and to `min_p` of the
    likeliest's chance; of what is left the highest sum of logit and noise (`core/keyed.py`) wins.

    temperature 0 is the highest logit, ties to the lowest id; top_k 0, top_p 1 and min_p 0 are off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprob:
    """Log-probabilities of one drawn token, of the raw logits, natural log, float32.

    `top` holds as many (token, logprob) as were asked, best first, ties to the lowest id.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A kept state: an engine-wide id, how many rows of a prompt's beginning it holds, and the
    bytes that it takes beside the pages of rows which it shares."""

    id: int
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """Everything an engine needs to know of a stream before its first row.

    seed is any signed 64-bit integer. `logprobs` is the number of alternatives wanted with each
    token (0 is the token's own alone), or none. `marks` are grid positions inside the prompt whose
    state is to be kept; `resume` is a state kept of an equal beginning, or none.
    """

    stream: int
    prompt: tuple[int, ...]
    most: int
    sampling: Sampling = Sampling()
    seed: int = 0
    logprobs: int | None = None
    marks: tuple[int, ...] = ()
    resume: Saved | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """`cached` prompt rows need not run: fewer than the prompt, on the grid.

    `lost` says in words why a `resume` could not be restored (the pass then runs from row 0).
    """

    stream: int
    cached: int = 0
    lost: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Rows `[start, end)` of one pass. `end` is the prompt's end or on the grid.

    `want` is how many drafts to propose after the first token, `mask` the vocabulary mask of that
    token (little-endian bits, 1 allowed), `logprobs` as in `Opening`, for the piece's own rows:
    asked of a pass from its start or a mark on, since rows that nobody asked for may be left out.
    `split` has ranks share the index of its rows: in shares of equal "cost" or "rows"; empty: not.
    """

    stream: int
    start: int
    end: int
    want: int = 0
    mask: bytes | None = None
    logprobs: int | None = None
    split: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """What a piece gave. `token` is set if it ended the prompt; `saved` if `end` was a mark.

    `rows` holds the log-probabilities that the piece's rows give to the prompt's next tokens.
    With `fault` (words) the stream ends and nothing else is set.
    """

    stream: int
    token: int | None = None
    logprob: TokenLogprob | None = None
    saved: Saved | None = None
    rows: tuple[TokenLogprob, ...] = ()
    drafts: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """One stream's rows in a round: row 0 the pending token, `forced` tokens, then guesses.

    `masks` holds one vocabulary mask a row (or none for a row), or is empty. With `goes_on` the
    stream's next window, unless it is closed, is the token that comes of this one, alone, with
    nothing asked: an engine may run it before it is asked for. It changes no result.
    """

    stream: int
    tokens: tuple[int, ...]
    forced: int = 0
    want: int = 0
    masks: tuple[bytes | None, ...] = ()
    goes_on: bool = field(default=False, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Landed:
    """The tokens a window committed: forced and accepted ones, and the token after them.

    `logprobs` matches `tokens` if asked, else is empty. With `fault` nothing else is set.
    """

    stream: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    drafts: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes of an engine's state storage."""

    used: int
    free: int
    peak: int


def nobody() -> bool:
    return False


class Flight(Protocol, Generic[Result]):
    """Work that was enqueued; `land()` waits and gives one result a piece or window, in order.

    `waits` is asked once the work is done: whether a prompt that has come meanwhile waits for the
    device. An engine runs no round then before it is asked for.
    """

    def land(self, waits: Callable[[], bool] = nobody) -> Sequence[Result]: ...


@runtime_checkable
class Watched(Protocol):
    """An engine that may be lost between calls, as when another of its ranks dies."""

    def watch(self, watcher: Callable[[str], None], given_up: Callable[[str], None]) -> None:
        """Have `watcher` told why, once, on another thread; and `given_up` where the call that is
        open at a loss does not come back. If it does later, it raises `EngineLost`."""
        ...

    def lose(self, words: str) -> None:
        """It is lost of what whoever calls it failed in, unless it is lost already; from any
        thread. Its ranks all end of it."""
        ...


class Engine(Protocol):
    """What the lane host drives, from one thread. One flight is open at a time.

    `EngineFault` is raised by a call that did nothing, `EngineLost` when no later call can work;
    what hurts one stream is a value in its own result.
    """

    @property
    def info(self) -> Info: ...

    def open(self, opening: Opening) -> Opened:
        """Claim a stream's storage. Raises `NoRoom` (fits later) or `Refused` (never)."""
        ...

    def fill(self, pieces: Sequence[Piece]) -> Flight[Filled]:
        """One forward of at most `chunk_rows` rows of one prompt, or `pack_rows` of several."""
        ...

    def round(self, windows: Sequence[Window]) -> Flight[Landed]:
        """One forward over all windows; state is left at each stream's accepted rows."""
        ...

    def drop(self, saved: Saved) -> None:
        """Free a kept state."""
        ...

    def close(self, stream: int) -> None:
        """Free everything of a stream but its kept states, at any moment outside a flight."""
        ...

    def memory(self) -> Memory:
        """Callable from any thread; touches no device."""
        ...

    def shutdown(self) -> None:
        """Free the device. No call may follow."""
        ...
