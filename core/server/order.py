"""A checked request into jobs for the lane host, with the rules to read their replies by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tensorfold.core.errors import RequestError
from tensorfold.core.keyed import derived_seed, sibling_seed
from tensorfold.core.lane_host.stream import Job, never
from tensorfold.core.server.params import Params
from tensorfold.core.server.service import Service
from tensorfold.core.text import Prompt, ReadingRules, TooLong, ends_at_stop
from tensorfold.core.token_ids import decimals


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What one request asked for.

    `jobs` are `n` replies to every prompt, prompt after prompt; `rules` matches them. `texts` are
    the prompts' ids in decimal, joined by commas. `sections` tells whether replies have reasoning.
    `unknown` names the fields that were ignored.
    """

    params: Params
    prompts: tuple[Prompt, ...]
    texts: tuple[bytes, ...]
    jobs: tuple[Job, ...]
    rules: tuple[ReadingRules, ...]
    sections: bool
    unknown: frozenset[str]

    def text_of(self, index: int) -> bytes:
        """The text of the prompt that a reply is to."""
        return self.texts[index // self.params.n]


def make_order(
    service: Service,
    params: Params,
    prompts: Sequence[Prompt],
    unknown: set[str],
    *,
    chat: bool,
) -> Order:
    """Raises `RequestError` where a prompt and its reply do not fit."""
    jobs: list[Job] = []
    rules: list[ReadingRules] = []
    texts: list[bytes] = []
    ends = params.stop_token_ids
    if not params.ignore_eos:
        ends |= service.text.end_ids
    for prompt in prompts:
        reading = rules_of(service, params, prompt, ends, chat=chat)
        most = reply_bound(service, params, len(prompt.ids), chat=chat)
        text = decimals(prompt.ids)
        texts.append(text)
        seed = derived_seed(text) if params.seed is None else params.seed
        for index in range(params.n):
            jobs.append(make_job(service, params, prompt, reading, most, sibling_seed(seed, index)))
            rules.append(reading)
    return Order(
        params=params,
        prompts=tuple(prompts),
        texts=tuple(texts),
        jobs=tuple(jobs),
        rules=tuple(rules),
        sections=chat and service.text.markers is not None,
        unknown=frozenset(unknown),
    )


def rules_of(
    service: Service, params: Params, prompt: Prompt, ends: frozenset[int], *, chat: bool
) -> ReadingRules:
    """`ends` are of all prompts: a request may have many of both."""
    text = service.text
    if chat:
        return text.chat_rules(
            prompt, stops=params.stops, end_tokens=ends, skip_special=params.skip_special_tokens
        )
    return text.plain_rules(
        stops=params.stops, end_tokens=ends, skip_special=params.skip_special_tokens
    )


def make_job(
    service: Service, params: Params, prompt: Prompt, rules: ReadingRules, most: int, seed: int
) -> Job:
    ends: Callable[[Sequence[int]], bool] = ends_at_stop(rules) if rules.stops else never
    return Job(
        stream=service.mailroom.number(),
        prompt=prompt.ids,
        most=most,
        sampling=params.sampling,
        seed=seed,
        logprobs=params.logprobs,
        end_tokens=rules.end_tokens,
        ends=ends,
        background=params.background,
        draft=params.draft,
    )


# Agents look for these words, and cut their chat by the count that follows.
LIMIT = "This model's maximum context length is {} tokens. However, "


def too_long(context: int, place: str, count: str) -> RequestError:
    return RequestError(
        f"{LIMIT.format(context)}your {place} resulted in {count} tokens. "
        f"Please reduce the length of the {place}.",
        code="context_length_exceeded",
        param=place,
    )


@contextmanager
def counted(service: Service, place: str) -> Iterator[None]:
    """Refuses a text that was too long to be counted, as one is that was counted."""
    try:
        yield
    except TooLong as error:
        raise too_long(service.info.context, place, f"at least {error.least}") from None


def reply_bound(service: Service, params: Params, rows: int, *, chat: bool) -> int:
    """Most tokens of a reply to a prompt of `rows` tokens.

    A bound that the request names must fit as it is; one of the server's is cut to the context.
    """
    context, asked = service.info.context, params.max_tokens
    place = "messages" if chat else "prompt"
    if rows == 0:
        raise RequestError(f"the {place} must hold at least one token", param=place)
    if rows >= context:
        raise too_long(context, place, str(rows))
    if asked is None:
        return min(context - rows, service.settings.max_tokens or context)
    if rows + asked > context:
        raise RequestError(
            f"{LIMIT.format(context)}you requested {rows + asked} tokens ({rows} in the {place}, "
            f"{asked} in the completion). Please reduce the length of the {place} or "
            f"{params.max_tokens_field}.",
            code="context_length_exceeded",
            param=params.max_tokens_field,
        )
    return asked
