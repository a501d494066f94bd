"""One reply while it is being made: its tokens, its limits, and what its reader is owed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorfold.core.engine_api import TokenLogprob
from tensorfold.core.keyed import token_sha256
from tensorfold.core.lane_host.guessing import Guessing
from tensorfold.core.lane_host.rounds import NO_CHAIN, Chain
from tensorfold.core.lane_host.stream import (
    END_TOKEN,
    FAULT,
    LENGTH,
    STOP,
    Counts,
    End,
    Job,
    never,
    nothing,
)

WAITING = "waiting"
FILLING = "filling"
LIVE = "live"
ENDED = "ended"


@dataclass(kw_only=True, slots=True, eq=False)
class Reply:
    """A stream's state in the host; only the engine thread changes it.

    `left` is how many tokens may still be committed, `pending` the last committed token, `coming`
    the tokens that are forced after it, and `chain` the guesses after those. `guessing` is none for
    a stream that takes no drafts. `sent` of the tokens have been delivered; `logprobs` are
    those not yet delivered. `served` is the last round that it was in or came after. `skipped`
    counts the later ones that passed it while it waited for memory, `tried` is the host's count of
    freed storage when it was last refused room. Forced tokens are below `vocab_size`. Times are of
    the host's clock, in seconds.
    """

    job: Job
    stream: int
    submitted: float
    left: int
    draws: bool
    vocab_size: int
    place: str = WAITING
    skipped: int = 0
    tried: int = -1
    opened: bool = False
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    pending: int = -1
    coming: tuple[int, ...] = ()
    chain: Chain = NO_CHAIN
    guessing: Guessing | None = None
    served: int = 0
    rounds: int = 0
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
        job, own, kept = self.job, self.tokens, len(tokens)
        # That nothing ends a reply here is mostly seen without a look at each of its tokens.
        if job.ends is never and kept < self.left and job.end_tokens.isdisjoint(tokens):
            own.extend(tokens)
        else:
            before = len(own)
            for token in tokens:
                own.append(token)
                reason, words = self.ended_by(token)
                if reason is not None:
                    break
            kept = len(own) - before
        self.left -= kept
        self.pending = own[-1]
        if job.logprobs is not None:
            assert len(logprobs) == len(tokens), (self.stream, len(logprobs), len(tokens))
            self.logprobs.extend(logprobs[:kept])
        if reason is None and job.forces is not nothing:
            reason, words = self.look_ahead()
        return kept, reason, words

    def look_ahead(self) -> tuple[str | None, str]:
        """Ask for the tokens that are forced now; the reason and words of an end if that fails."""
        if self.job.forces is nothing:
            return None, ""
        try:
            coming = tuple(self.job.forces(self.tokens))
        except Exception as error:
            return FAULT, f"the forced tokens failed: {type(error).__name__}: {error}"
        for token in coming:
            if type(token) is not int or not 0 <= token < self.vocab_size:
                top = self.vocab_size - 1
                return FAULT, f"a forced token is {token!r}, and tokens are 0 to {top}"
        self.coming = coming
        return None, ""

    def free(self, chain: Chain) -> Chain:
        """The guesses up to where a token would be forced: there none may be drawn."""
        forces = self.job.forces
        tokens = [*self.tokens, *self.coming]
        guesses, chances, sources = chain
        for row, token in enumerate(guesses):
            tokens.append(token)
            try:
                free = not forces(tokens)
            except Exception:
                # It fails for tokens that may never come; if they do, the reply ends with it.
                free = False
            if not free:
                return guesses[:row], chances[:row], sources[:row]
        return chain

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

    def ending(self, reason: str, words: str) -> End:
        return End(reason=reason, message=words, counts=self.counts())

    def counts(self) -> Counts:
        admitted, first, guessing = self.opened, bool(self.tokens), self.guessing
        if guessing is not None:
            guessing.count()
        return Counts(
            prompt=len(self.job.prompt),
            tokens=len(self.tokens),
            cached=self.cached,
            rounds=self.rounds,
            drafted=sum(guessing.drafted) if guessing is not None else 0,
            accepted=sum(guessing.accepted) if guessing is not None else 0,
            by_source=guessing.by_source() if guessing is not None else {},
            queue_seconds=self.admitted_at - self.submitted if admitted else 0.0,
            prefill_seconds=self.first_at - self.admitted_at if first else 0.0,
            decode_seconds=self.last_at - self.first_at if first else 0.0,
            token_sha256=token_sha256(self.tokens),
        )
