"""One reply while it is being made: its tokens, its limits, and what its reader is owed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorfold.core.engine_api import TokenLogprob
from tensorfold.core.keyed import token_sha256
from tensorfold.core.lane_host.stream import (
    END_TOKEN,
    FAULT,
    LENGTH,
    STOP,
    Counts,
    Delivery,
    End,
    Job,
    never,
)

WAITING = "waiting"
FILLING = "filling"
LIVE = "live"
ENDED = "ended"


@dataclass(kw_only=True, slots=True, eq=False)
class Reply:
    """A stream's state in the host; only the engine thread changes it.

    `left` is how many tokens may still be committed, `pending` the last committed token and
    `guesses` the drafts that follow it. `sent` of the tokens have been delivered; `logprobs` are
    those not yet delivered. `served` is the last round that it was in or came after. `skipped`
    counts the later ones that passed it while it waited for memory, `tried` is the host's count of
    freed storage when it was last refused room. Times are of the host's clock, in seconds.
    """

    job: Job
    stream: int
    submitted: float
    left: int
    draws: bool
    place: str = WAITING
    skipped: int = 0
    tried: int = -1
    opened: bool = False
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    pending: int = -1
    guesses: tuple[int, ...] = ()
    served: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    admitted_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    sent: int = 0
    owed: bool = False
    end: End | None = None

    def take(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]
    ) -> tuple[int, str | None, str]:
        """Commit tokens one by one; how many were kept, and the reason and words of an end."""
        reason: str | None = None
        words = ""
        kept = 0
        for token in tokens:
            self.tokens.append(token)
            kept += 1
            reason, words = self.ended_by(token)
            if reason is not None:
                break
        self.left -= kept
        self.pending = self.tokens[-1]
        if self.job.logprobs is not None:
            assert len(logprobs) == len(tokens), (self.stream, len(logprobs), len(tokens))
            self.logprobs.extend(logprobs[:kept])
        return kept, reason, words

    def ended_by(self, token: int) -> tuple[str | None, str]:
        """Whether the reply ends with its last token: end token, stop, length, in this order."""
        job = self.job
        if token in job.end_tokens:
            return END_TOKEN, ""
        if job.ends is not never:
            try:
                if job.ends(self.tokens):
                    return STOP, ""
            except Exception as error:
                return FAULT, f"the stop condition failed: {type(error).__name__}: {error}"
        return (LENGTH, "") if len(self.tokens) == job.most else (None, "")

    def forget_owed(self) -> None:
        """A cancelled reply emits nothing more: it ends with the last token it delivered."""
        del self.tokens[self.sent :]
        self.logprobs.clear()

    def letter(self) -> Delivery:
        tokens = tuple(self.tokens[self.sent :])
        return Delivery(
            stream=self.stream, tokens=tokens, logprobs=tuple(self.logprobs), end=self.end
        )

    def ending(self, reason: str, words: str) -> End:
        return End(reason=reason, message=words, counts=self.counts())

    def counts(self) -> Counts:
        admitted, first = self.opened, bool(self.tokens)
        return Counts(
            prompt=len(self.job.prompt),
            tokens=len(self.tokens),
            cached=self.cached,
            rounds=self.rounds,
            drafted=self.drafted,
            accepted=self.accepted,
            queue_seconds=self.admitted_at - self.submitted if admitted else 0.0,
            prefill_seconds=self.first_at - self.admitted_at if first else 0.0,
            decode_seconds=self.last_at - self.first_at if first else 0.0,
            token_sha256=token_sha256(self.tokens),
        )
