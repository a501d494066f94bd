"""A model's text side: its tokenizer, its chat format, its end tokens and its defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorfold.core.errors import RequestError, StartError
from tensorfold.core.family_api import ChatFormat
from tensorfold.core.text.reader import Markers, ReadingRules
from tensorfold.core.text.template import MOST_SOURCE, ChatTemplate, TemplateFault
from tensorfold.core.text.tokenizer import Vocabulary, load_vocabulary

# Stands where a final message is to go on, while its chat is rendered; private-use characters.
CONTINUED = "\ue000\ue001\ue000"
# Texts are counted up to that many times what may be, since clients cut by the count.
COUNTED = 4
# For a model that is served without chats.
NO_TEMPLATE = "{{ raise_exception('this model has no chat template') }}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """Sampling that generation_config.json asks for; none where it is silent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A prompt's ids, and whether its end has opened the reasoning already."""

    ids: tuple[int, ...]
    reasoning: bool = False


class TooLong(Exception):
    """A text of at least `least` tokens: more than is worth counting."""

    def __init__(self, least: int) -> None:
        super().__init__(f"at least {least} tokens")
        self.least = least


class Text:
    """What the server needs of a model's text. Safe to use from several threads."""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        markers: Markers | None,
        end_ids: frozenset[int],
        defaults: Defaults,
        special_texts: Mapping[str, str],
    ) -> None:
        self.vocabulary = vocabulary
        self.template = template
        self.markers = markers
        self.end_ids = end_ids
        self.defaults = defaults
        self.special_texts = dict(special_texts)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        values: Mapping[str, Any] | None = None,
    ) -> str:
        """A chat as text. Raises `TemplateFault`.

        With `continue_final_message` the text ends inside the last message, for the model to go
        on with it.
        """
        shown = [dict(message) for message in messages]
        if continue_final_message:
            shown[-1]["content"] = str(shown[-1].get("content") or "") + CONTINUED
        rendered = self.template.render(
            {
                **self.special_texts,
                **(values or {}),
                "messages": shown,
                "tools": list(tools) if tools else None,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            }
        )
        if not continue_final_message:
            return rendered
        before, mark, _ = rendered.rpartition(CONTINUED)
        if not mark:
            raise TemplateFault("the chat template leaves no place to continue the final message")
        return before

    def encode(self, text: str, most: int, *, special: bool = False) -> tuple[int, ...]:
        """A text's ids. Raises `TooLong` for one that is sure to be far longer than `most` tokens.

        Tokenizing takes seconds and gigabytes for what a body may hold.
        """
        least = self.vocabulary.least_tokens(text)
        if most and least > COUNTED * most:
            raise TooLong(least)
        return self.vocabulary.encode(text, special=special)

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], *, most: int = 0, **options: Any
    ) -> Prompt:
        """A chat as ids; options as in `render`. Raises `RequestError`, and as `encode` does."""
        try:
            rendered = self.render(messages, **options)
        except TemplateFault as error:
            raise RequestError(str(error), param="messages") from None
        markers = self.markers
        opened = markers is not None and rendered.rstrip().endswith(markers.open)
        return Prompt(ids=self.encode(rendered, most), reasoning=opened)

    def plain_prompt(self, text: str, *, most: int = 0) -> Prompt:
        """A text as ids, with what the tokenizer puts around one. Raises as `encode` does."""
        return Prompt(ids=self.encode(text, most, special=True))

    def chat_rules(self, prompt: Prompt, **options: Any) -> ReadingRules:
        """How to read a chat's reply; options are the other fields of `ReadingRules`."""
        return ReadingRules(
            vocabulary=self.vocabulary, markers=self.markers, reasoning=prompt.reasoning, **options
        )

    def plain_rules(self, **options: Any) -> ReadingRules:
        """How to read a completion, which has no sections."""
        return ReadingRules(vocabulary=self.vocabulary, **options)


def load_text(folder: Path, chat: ChatFormat, vocab_size: int, end_ids: Sequence[int]) -> Text:
    """Read a checkpoint's text side. Raises `StartError` naming the file at fault.

    The checkpoint's own chat template comes before the family's. `end_ids` are those that its
    config names; generation_config.json, the tokenizer's `eos_token` and the chat format add
    theirs.
    """
    vocabulary = load_vocabulary(folder, vocab_size)
    tokenizer_config = read_object(folder / "tokenizer_config.json")
    generation = read_object(folder / "generation_config.json")
    source, template_text = find_template(folder, tokenizer_config, chat)
    special_texts = find_special_texts(tokenizer_config)
    text = Text(
        vocabulary=vocabulary,
        template=compiled(source, template_text or NO_TEMPLATE),
        markers=find_markers(vocabulary, chat),
        end_ids=find_ends(folder, vocabulary, chat, special_texts, generation, end_ids),
        defaults=find_defaults(folder, generation),
        special_texts=special_texts,
    )
    if not template_text:
        return text
    try:
        text.render([{"role": "user", "content": "Hello"}])
    except TemplateFault as error:
        raise StartError(f"{source}: {error}") from None
    return text


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of an optional file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise StartError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise StartError(f"{path} must hold a JSON object")
    return value


def find_template(
    folder: Path, tokenizer_config: Mapping[str, Any], chat: ChatFormat
) -> tuple[str, str]:
    """Where the chat template comes from, in words, and its text."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        if path.stat().st_size > MOST_SOURCE:
            raise StartError(f"{path} is larger than {MOST_SOURCE} bytes")
        try:
            return str(path), path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"{path} cannot be read: {error}") from None
    given = tokenizer_config.get("chat_template")
    source = f"chat_template of {folder / 'tokenizer_config.json'}"
    if isinstance(given, list):
        named = {item.get("name"): item.get("template") for item in given if isinstance(item, dict)}
        given = named.get("default")
    if isinstance(given, str):
        return source, given
    if given is not None:
        raise StartError(f"{source} must be a text, not {type(given).__name__}")
    return "the family's chat template", chat.template


def compiled(source: str, text: str) -> ChatTemplate:
    try:
        return ChatTemplate(text)
    except TemplateFault as error:
        raise StartError(f"{source}: {error}") from None


def find_markers(vocabulary: Vocabulary, chat: ChatFormat) -> Markers | None:
    if not chat.think_open or not chat.think_close:
        return None
    return Markers(
        open=chat.think_open,
        close=chat.think_close,
        open_id=vocabulary.id_of(chat.think_open),
        close_id=vocabulary.id_of(chat.think_close),
    )


def find_ends(
    folder: Path,
    vocabulary: Vocabulary,
    chat: ChatFormat,
    special_texts: Mapping[str, str],
    generation: Mapping[str, Any],
    end_ids: Sequence[int],
) -> frozenset[int]:
    listed = generation.get("eos_token_id", [])
    listed = listed if isinstance(listed, list) else [listed]
    for id in (*listed, *end_ids):
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < vocabulary.vocab_size:
            raise StartError(
                f"{folder / 'generation_config.json' if id in listed else folder / 'config.json'}: "
                f"eos_token_id {id!r} is no token id below {vocabulary.vocab_size}"
            )
    texts = {*chat.end_tokens, special_texts.get("eos_token", "")}
    named = (vocabulary.id_of(text) for text in texts)
    return frozenset(listed) | frozenset(end_ids) | {id for id in named if id is not None}


def find_defaults(folder: Path, generation: Mapping[str, Any]) -> Defaults:
    path = folder / "generation_config.json"
    limits = {"temperature": (0, 2), "top_p": (0, 1), "top_k": (0, 1 << 31), "min_p": (0, 1)}
    found: dict[str, Any] = {}
    for name, (least, most) in limits.items():
        value = generation.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise StartError(f"{path}: {name} must be a number, not {value!r}")
        if not least <= value <= most or (name == "top_p" and value == 0):
            raise StartError(f"{path}: {name} is {value!r}, outside {least} to {most}")
        if name == "top_k" and value != int(value):
            raise StartError(f"{path}: {name} must be a whole number, not {value!r}")
        found[name] = int(value) if name == "top_k" else float(value)
    if generation.get("do_sample") is False:
        found["temperature"] = 0.0
    return Defaults(**found)


def find_special_texts(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like, for templates: texts, or objects with a `content`."""
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = tokenizer_config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found
