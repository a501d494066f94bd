"""Tokenizers and vocabularies for tests of text: byte-level, with awkward characters in them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tensorfold.core.family_api import ChatFormat
from tensorfold.core.text import Markers, ReadingRules, Text, Vocabulary, load_text

SAMPLE = "Grüße, 世界! 👩‍👩‍👧 the theme of these thermals, 日本語と漢字 and 🎉🎊 naïve café\n\n" * 4
SPECIAL = ("<|endoftext|>", "<|user|>", "<|assistant|>")
PLAIN = ("<think>", "</think>")


@cache
def byte_level_tokenizer() -> Tokenizer:
    """A small byte-level BPE; `SPECIAL` are special tokens, `PLAIN` tokens of their own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator([SAMPLE], trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    return tokenizer


@cache
def vocabulary() -> Vocabulary:
    tokenizer = byte_level_tokenizer()
    return Vocabulary(tokenizer, tokenizer.get_vocab_size(), byte_level=True)


def id_of(text: str) -> int:
    found = vocabulary().id_of(text)
    assert found is not None, text
    return found


def think_markers(*, as_tokens: bool) -> Markers:
    open_id, close_id = (id_of(PLAIN[0]), id_of(PLAIN[1])) if as_tokens else (None, None)
    return Markers(open=PLAIN[0], close=PLAIN[1], open_id=open_id, close_id=close_id)


def rules(**fields: Any) -> ReadingRules:
    return ReadingRules(vocabulary=vocabulary(), **fields)


def write_folder(
    folder: Path,
    *,
    tokenizer: str | None = None,
    template: str | None = "{{ messages[0].content }}",
    tokenizer_config: Any = None,
    generation_config: Any = None,
) -> Path:
    """The text side of a checkpoint; a None leaves the file out, except the tokenizer's."""
    text = byte_level_tokenizer().to_str() if tokenizer is None else tokenizer
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    for name, value in (
        ("tokenizer_config", tokenizer_config),
        ("generation_config", generation_config),
    ):
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder


def load(
    folder: Path, chat: ChatFormat | None = None, vocab_size: int = 400, **fields: Any
) -> Text:
    return load_text(
        folder, chat or ChatFormat(template="{{ messages[0].content }}"), vocab_size, **fields
    )
