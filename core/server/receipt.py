"""What a reply proves about itself, and what it used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorfold.core.keyed import text_sha256
from tensorfold.core.lane_host.stream import Counts, Job


def receipt(job: Job, counts: Counts, identity: str, prompt: bytes) -> dict[str, Any]:
    """The `tensorfold` object of a reply to a prompt of these ids, in decimal with commas."""
    decoding = counts.decode_seconds
    speed = (counts.tokens - 1) / decoding if counts.tokens > 1 and decoding > 0 else None
    return {
        "token_sha256": counts.token_sha256,
        "prompt_sha256": text_sha256(prompt),
        "engine": identity,
        "seed": job.seed,
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "drafts": {
            name: {"drafted": drafted, "accepted": accepted}
            for name, (drafted, accepted) in counts.by_source.items()
        },
        "cached": counts.cached,
        "queue_seconds": counts.queue_seconds,
        "prefill_seconds": counts.prefill_seconds,
        "decode_seconds": decoding,
        "tokens_per_second": speed,
    }


def receipts(replies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A request's receipt: its first reply's, which holds all of them where there are several."""
    return replies[0] if len(replies) == 1 else {**replies[0], "replies": list(replies)}


def usage(
    prompts: Sequence[int], counts: Sequence[Counts], reasoning: int | None
) -> dict[str, Any]:
    """`prompts` are the lengths of the request's prompts: each counts once, however many replies
    it has. `reasoning` is none where replies have no such section."""
    prompt, completion = sum(prompts), sum(count.tokens for count in counts)
    per_prompt = len(counts) // len(prompts)
    cached = sum(
        max(count.cached for count in counts[first : first + per_prompt])
        for first in range(0, len(counts), per_prompt)
    )
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if reasoning is not None:
        found["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return found
