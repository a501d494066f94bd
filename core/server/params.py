"""What chat and text completions have in common: how much to write, how, and what to tell."""

from __future__ import annotations

from dataclasses import dataclass

from tensorfold.core.engine_api import Info, Sampling
from tensorfold.core.errors import RequestError
from tensorfold.core.server.wire import Fields
from tensorfold.core.settings import Settings
from tensorfold.core.text import Text

LEAST_SEED, MOST_SEED = -(1 << 63), (1 << 63) - 1
MOST_COUNT = (1 << 31) - 1
MOST_STOPS = 64
MOST_STOP_LENGTH = 4096

# Fields that other servers have, with the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "cache_salt": ("",),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_json": (),
    "guided_regex": ("",),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "presence_penalty": (0, 0.0),
    "prompt_logprobs": (),
    "repetition_penalty": (1, 1.0),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_budget": (),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
# Fields that change nothing in a reply: labels, and permissions for what is not there.
HARMLESS = (
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """`max_tokens` is none where it was left to the server; `seed` where it is the prompt's.

    `logprobs` is the number of alternatives asked with each token, or none.
    """

    model: str
    sampling: Sampling
    max_tokens: int | None
    max_tokens_field: str
    n: int
    seed: int | None
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    logprobs: int | None
    stream: bool
    include_usage: bool
    ignore_eos: bool
    skip_special_tokens: bool
    return_token_ids: bool
    background: bool
    draft: bool


def read_params(
    fields: Fields, logprobs: int | None, *, info: Info, text: Text, settings: Settings
) -> Params:
    """Everything but the prompt and the log-probabilities, which the two routes ask differently."""
    for name, neutral in UNSUPPORTED.items():
        fields.refuse_unless(name, neutral)
    for name in HARMLESS:
        fields.get(name)
    max_tokens, max_tokens_field = read_max_tokens(fields)
    stream = fields.boolean("stream")
    return Params(
        model=fields.text("model") or "",
        sampling=read_sampling(fields, text, settings),
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        n=read_n(fields, info),
        seed=fields.integer("seed", LEAST_SEED, MOST_SEED),
        stops=read_stops(fields),
        stop_token_ids=frozenset(fields.token_ids("stop_token_ids", info.vocab_size)),
        logprobs=logprobs,
        stream=stream,
        include_usage=read_include_usage(fields, stream),
        ignore_eos=fields.boolean("ignore_eos"),
        skip_special_tokens=fields.boolean("skip_special_tokens", True),
        return_token_ids=fields.boolean("return_token_ids"),
        background=fields.choice("priority", ("foreground", "background")) == "background",
        draft=fields.boolean("draft", True),
    )


def read_max_tokens(fields: Fields) -> tuple[int | None, str]:
    """The reply's bound and the field that gave it: the newer name wins, if both agree."""
    newer = fields.integer("max_completion_tokens", 1, MOST_COUNT)
    older = fields.integer("max_tokens", 1, MOST_COUNT)
    if newer is not None and older is not None and newer != older:
        raise RequestError(
            f"max_completion_tokens is {newer} and max_tokens is {older}: give one of them",
            param="max_completion_tokens",
        )
    if newer is not None:
        return newer, "max_completion_tokens"
    return older, "max_tokens"


def read_sampling(fields: Fields, text: Text, settings: Settings) -> Sampling:
    """The request's own values, else the settings', else the checkpoint's, else OpenAI's."""
    own = text.defaults
    temperature = first(
        fields.number("temperature", 0, 2),
        settings.temperature if settings.temperature >= 0 else None,
        own.temperature,
        1.0,
    )
    top_p = first(
        fields.number("top_p", 0, 1, above=True),
        settings.top_p if settings.top_p > 0 else None,
        own.top_p,
        1.0,
    )
    asked_top_k = fields.integer("top_k", -1, MOST_COUNT)
    top_k = first(
        None if asked_top_k is None else max(0, asked_top_k),
        settings.top_k if settings.top_k >= 0 else None,
        own.top_k,
        0,
    )
    min_p = first(
        fields.number("min_p", 0, 1),
        settings.min_p if settings.min_p >= 0 else None,
        own.min_p,
        0.0,
    )
    return Sampling(temperature=temperature, top_k=int(top_k), top_p=top_p, min_p=min_p)


def first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def read_n(fields: Fields, info: Info) -> int:
    n = fields.integer("n", 1, MOST_COUNT)
    if n is not None and n > info.lanes:
        raise RequestError(
            f"n must be at most {info.lanes}, the replies made at once here, not {n}", param="n"
        )
    return n or 1


def read_stops(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong("stop", "a string or an array of strings")
    if not all(stops):
        raise fields.wrong("stop", "made of strings that are not empty")
    if len(stops) > MOST_STOPS or any(len(stop) > MOST_STOP_LENGTH for stop in stops):
        raise fields.wrong("stop", f"at most {MOST_STOPS} strings of {MOST_STOP_LENGTH} characters")
    return tuple(dict.fromkeys(stops))


def read_include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise RequestError("stream_options needs stream to be true", param="stream_options")
    inner = Fields(options, "stream_options")
    inner.refuse_unless("continuous_usage_stats", (False,))
    return inner.boolean("include_usage")
