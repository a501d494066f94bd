"""What goes into the lane host and what comes out of it, as data.

A `Job` is one reply to be made. `Delivery` values are what its reader is owed: tokens as they are
committed, and exactly one `End`. Both are plain records: the server turns them into text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorfold.core.engine_api import Sampling, TokenLogprob

# Why a reply ended. The first three are the model's own ends; the others carry a message.
END_TOKEN = "end_token"
STOP = "stop"
LENGTH = "length"
CANCELLED = "cancelled"
FAULT = "fault"  # this stream alone was hurt
REFUSED = "refused"  # it can never fit
CLOSING = "closing"  # the host shut down before it was done
LOST = "lost"  # the engine can work no more


def never(tokens: Sequence[int]) -> bool:
    return False


def nothing(tokens: Sequence[int]) -> Sequence[int]:
    return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One reply to be made.

    `stream` is unique for the host's life. `most` bounds the reply in tokens, and prompt plus
    `most` fits the context. `ends(tokens)` is asked once a token with the reply so far, that token
    included, on the engine thread: true ends the reply with it. `end_tokens` end it before that.
    `forces(tokens)` tells the tokens that must come after the reply so far, whatever the model
    says: pure, asked on the engine thread, and true to itself as its own tokens come.
    `logprobs` is as in `Opening`. `draft` false decodes without drafts.
    """

    stream: int
    prompt: tuple[int, ...]
    most: int
    sampling: Sampling = Sampling()
    seed: int = 0
    logprobs: int | None = None
    end_tokens: frozenset[int] = frozenset()
    ends: Callable[[Sequence[int]], bool] = never
    forces: Callable[[Sequence[int]], Sequence[int]] = nothing
    background: bool = False
    draft: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """A reply's part of its receipt. Seconds are of the host's clock.

    `drafted` guesses had a row in a round, `accepted` of them came true; `by_source` holds both for
    each source of guesses that had a row. `queue_seconds` runs from submission to admission,
    `prefill_seconds` from admission to the first token, `decode_seconds` from the first token to
    the last.
    """

    prompt: int = 0
    tokens: int = 0
    cached: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_source: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    token_sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """A stream's one end. `message` says why in words when the model did not end it itself."""

    reason: str
    message: str = ""
    counts: Counts = field(default_factory=Counts)


# A tuple is quickly made: one goes to each live stream after each round.
class Delivery(NamedTuple):
    """What a stream's reader is owed now: tokens (may be none) and, last of all, its end.

    `logprobs` matches `tokens` when the job asked for them, else is empty.
    """

    stream: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    end: End | None = None


# Called on the engine thread, once a delivery round, with everything owed since the last call. It
# must not block: a server hands the list to its own thread with one wake. If it raises, it took
# nothing; the host is lost then, and offers everything once more with each stream's end.
Deliver = Callable[[Sequence[Delivery]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStats:
    """Figures of a host at one moment; counters only ever rise, and they always add up: started =
    finished + failed + aborted + waiting + filling + live.

    `aborted` were cancelled or cut by closing, `failed` were hurt, refused or lost with the engine.
    `drafted` and `accepted` count guesses that had a row, by their source; `forced` tokens that
    were. `rounds_by_rows` counts rounds by the power of two that their rows reach, and
    `drafter_faults` by name how often a drafter of the host was given up for a stream.
    """

    alive: bool
    closing: bool
    lost: str | None
    waiting: int
    waiting_rows: int
    filling: int
    live: int
    started: int
    finished: int
    failed: int
    aborted: int
    turns: int
    rounds: int
    round_rows: int
    filled_rows: int
    first_tokens: int
    tokens: int
    fills: dict[str, int]  # by kind: whole, piece, drained, packed, cut_in
    forced: int
    drafted: dict[str, int]
    accepted: dict[str, int]
    rounds_by_rows: dict[int, int]
    drafter_faults: dict[str, int]
    rows_per_second: float  # of recent fills; 0.0 until measured
