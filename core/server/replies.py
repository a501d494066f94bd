"""A reply as its reader sees it: deliveries in, text, log-probabilities and ends out."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import Any

from tensorfold.core.engine_api import TokenLogprob
from tensorfold.core.errors import RequestError, unavailable
from tensorfold.core.lane_host.stream import (
    CLOSING,
    END_TOKEN,
    FAULT,
    LENGTH,
    LOST,
    REFUSED,
    STOP,
    Delivery,
    End,
    Job,
)
from tensorfold.core.server.order import Order
from tensorfold.core.server.sse import WrittenLists
from tensorfold.core.text import Part, Reader, ReadingRules, Vocabulary

FINISH_REASONS = {END_TOKEN: "stop", STOP: "stop", LENGTH: "length"}
# OpenAI's floor: JSON has no infinity.
LEAST_LOGPROB = -9999.0


class Reply:
    """One reply of a request.

    `tokens` are all so far. `fresh_tokens` and `fresh_logprobs` are those that no chunk has
    carried yet; the token that ends a reply has no log-probability there, as it has no text.
    `written` holds log-probabilities of a reply that is told whole.
    """

    def __init__(
        self, index: int, job: Job, rules: ReadingRules, stop_token_ids: frozenset[int]
    ) -> None:
        self.index = index
        self.job = job
        self.stop_token_ids = stop_token_ids
        self.reader = Reader(rules)
        self.texts: dict[str, list[str]] = {"reasoning": [], "content": []}
        self.tokens: list[int] = []
        self.fresh_tokens: list[int] = []
        self.fresh_logprobs: list[TokenLogprob] = []
        self.written = WrittenLists()
        self.end: End | None = None

    def take(self, delivery: Delivery) -> list[Part]:
        """The text that a delivery makes certain."""
        self.tokens.extend(delivery.tokens)
        self.fresh_tokens.extend(delivery.tokens)
        ends = self.job.end_tokens
        self.fresh_logprobs.extend(one for one in delivery.logprobs if one.token not in ends)
        parts = self.reader.feed(delivery.tokens)
        self.end = delivery.end
        if self.end is not None:
            parts += self.reader.finish()
        for part in parts:
            self.texts[part.section].append(part.text)
        return parts

    def take_fresh(self) -> tuple[list[int], list[TokenLogprob]]:
        fresh = self.fresh_tokens, self.fresh_logprobs
        self.fresh_tokens, self.fresh_logprobs = [], []
        return fresh

    def text(self, section: str) -> str:
        return "".join(self.texts[section])

    @property
    def finish_reason(self) -> str:
        assert self.end is not None
        return FINISH_REASONS[self.end.reason]

    @property
    def stop_reason(self) -> str | int | None:
        """What the request itself gave as a stop and ended the reply: a string or a token."""
        assert self.end is not None
        if self.end.reason == STOP:
            return self.reader.stopped
        asked = self.end.reason == END_TOKEN and self.tokens[-1] in self.stop_token_ids
        return self.tokens[-1] if asked else None


def make_replies(order: Order) -> dict[int, Reply]:
    """The replies of an order, by stream, in order of index."""
    pairs = enumerate(zip(order.jobs, order.rules, strict=True))
    asked = order.params.stop_token_ids
    return {job.stream: Reply(index, job, rules, asked) for index, (job, rules) in pairs}


def failure(end: End) -> RequestError | None:
    """What to answer for an end that is not the model's own."""
    if end.reason in FINISH_REASONS:
        return None
    words = end.message or end.reason
    if end.reason == REFUSED:
        return RequestError(words)
    if end.reason in (CLOSING, LOST):
        return unavailable(words)
    assert end.reason == FAULT, end
    return RequestError(words, status=500, kind="internal_error", code="reply_failed")


def floored(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def chat_logprobs(entries: Sequence[TokenLogprob], vocabulary: Vocabulary) -> dict[str, Any]:
    """OpenAI's chat shape. `bytes` lets a client put characters together that tokens split."""

    def described(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": vocabulary.label(token),
            "logprob": floored(logprob),
            "bytes": list(vocabulary.bytes_of(token)),
        }

    return {
        "content": [
            {
                **described(entry.token, entry.logprob),
                "top_logprobs": [described(token, logprob) for token, logprob in entry.top],
            }
            for entry in entries
        ]
    }


class PlainLogprobs:
    """OpenAI's completions shape, whose offsets count characters from the reply's start."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.offset = 0

    def shape(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        vocabulary = self.vocabulary
        offsets = []
        for entry in entries:
            offsets.append(self.offset)
            if entry.token not in vocabulary.special:
                self.offset += len(self.decoder.decode(vocabulary.bytes_of(entry.token)))
        return {
            "tokens": [vocabulary.label(entry.token) for entry in entries],
            "token_logprobs": [floored(entry.logprob) for entry in entries],
            "top_logprobs": [
                {vocabulary.label(token): floored(logprob) for token, logprob in entry.top}
                for entry in entries
            ],
            "text_offset": offsets,
        }
