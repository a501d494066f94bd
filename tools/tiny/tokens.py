"""The bundled model's tokenizer and its rendering of chats, as it ships them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A model line's own tokens.

    `ends` end a reply, `end_of_text` (the first of them) a plain text; `assistant` begins a reply
    and `others` what is none. Readers of a reply need `markup` in its text, so it is not "special"
    to a decoder.
    """

    control: tuple[str, ...]
    markup: tuple[str, ...]
    ends: tuple[str, ...]
    assistant: str
    others: tuple[str, ...]
    pad: str
    begin: str = ""

    @property
    def end_of_text(self) -> str:
        return self.ends[0]


# Words with the space before them, single digits, runs of marks, line ends, other space.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterable[str], vocab: int, words: Words) -> Tokenizer:
    """A byte-level BPE of exactly `vocab` tokens; control and markup tokens have the last ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    plain = vocab - len(words.control) - len(words.markup)
    trainer = trainers.BpeTrainer(
        vocab_size=plain,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != plain:
        raise ValueError(f"the texts give {tokenizer.get_vocab_size()} tokens, not {plain}")
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in words.control])
    markup = [AddedToken(token, special=False, normalized=False) for token in words.markup]
    tokenizer.add_tokens(markup)
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no {token}")
    return found


class Renderer:
    """Renders chats with a template as the server does."""

    def __init__(self, template: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self.template = environment.from_string(template)

    def __call__(self, chat: dict[str, Any], *, open_reply: bool = False) -> str:
        """The text of a chat: `messages`, and `tools` and template switches if it has them."""
        return self.template.render(**chat, add_generation_prompt=open_reply)


def _to_json(value: Any, ensure_ascii: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii)


def _refuse(words: str) -> None:
    raise ValueError(words)


def write_text_files(tokenizer: Tokenizer, out: Path, context: int, words: Words) -> dict[str, int]:
    """Write tokenizer.json and the two small configs; returns ids of the control tokens."""
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    ids = {token: id_of(tokenizer, token) for token in (*words.control, *words.markup)}
    added = {
        str(ids[token]): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in words.control,
        }
        for token in (*words.control, *words.markup)
    }
    config = {
        "added_tokens_decoder": added,
        "additional_special_tokens": list(words.control),
        "clean_up_tokenization_spaces": False,
        "do_lower_case": False,
        "eos_token": words.end_of_text,
        "pad_token": words.pad,
        "padding_side": "left",
        "remove_space": False,
        "model_max_length": context,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if words.begin:
        config["bos_token"] = words.begin
    generation = {
        "eos_token_id": [ids[token] for token in words.ends],
        "pad_token_id": ids[words.pad],
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 0.95,
    }
    for name, value in (("tokenizer_config", config), ("generation_config", generation)):
        (out / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    return ids
