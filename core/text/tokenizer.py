"""A checkpoint's tokenizer.json: text to ids, ids to bytes.

Ids become bytes one at a time, so that a reply is decoded in time that grows with its length
alone. That is possible because in every tokenizer served here a token is a run of bytes, and text
is their concatenation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from tensorfold.core.checkpoint.config import LFS_POINTER, POINTER_WORDS
from tensorfold.core.errors import StartError


def printable_bytes() -> dict[str, int]:
    """The byte-level alphabet (Radford et al. 2019): a printable character for every byte.

    Printable bytes stand for themselves; the others are shifted past 255 in ascending order.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


ALPHABET = printable_bytes()


class Vocabulary:
    """Ids to bytes and back to ids, over one tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, byte_level: bool) -> None:
        self.tokenizer = tokenizer
        self.byte_level = byte_level
        self.vocab_size = vocab_size
        added = tokenizer.get_added_tokens_decoder()
        self.added = {id: token.content.encode() for id, token in added.items()}
        self.special = frozenset(id for id, token in added.items() if token.special)
        self.known: dict[int, bytes] = {}
        self.widest = widest(tokenizer, byte_level=byte_level)

    def encode(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        """Ids of a text; `special` adds what the tokenizer itself puts around one."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def least_tokens(self, text: str) -> int:
        """A count that the text's tokens do not come below, at once; 0 where none is known."""
        return -(-len(text.encode()) // self.widest) if self.widest else 0

    def id_of(self, text: str) -> int | None:
        """The id of a text that is one token of the vocabulary, as its special tokens are."""
        return self.tokenizer.token_to_id(text)

    def bytes_of(self, token: int) -> bytes:
        """A token's bytes; none for an id that the model has and the tokenizer does not name."""
        found = self.known.get(token)
        if found is None:
            found = self.known[token] = self.spell(token)
        return found

    def spell(self, token: int) -> bytes:
        if token in self.added:
            return self.added[token]
        text = self.tokenizer.id_to_token(token)
        if text is None:
            return b""
        if self.byte_level and all(character in ALPHABET for character in text):
            return bytes(ALPHABET[character] for character in text)
        return text.encode()

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of whole ids; broken UTF-8 becomes U+FFFD."""
        kept = (token for token in tokens if not (skip_special and token in self.special))
        return b"".join(map(self.bytes_of, kept)).decode("utf-8", "replace")

    def label(self, token: int) -> str:
        """A token's text, or `bytes:\\xe2\\x80` where its bytes alone are no text."""
        raw = self.bytes_of(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def widest(tokenizer: Tokenizer, *, byte_level: bool) -> int:
    """Most bytes of text that one token stands for; 0 where a token may swallow more."""
    added = tokenizer.get_added_tokens_decoder().values()
    if tokenizer.normalizer is not None or any(token.lstrip or token.rstrip for token in added):
        return 0
    texts = tokenizer.get_vocab(with_added_tokens=False)
    sizes = map(len, texts) if byte_level else (len(text.encode()) for text in texts)
    return max(*sizes, *(len(token.content.encode()) for token in added), 0, 0)


def load_vocabulary(folder: Path, vocab_size: int) -> Vocabulary:
    """Read `folder`/tokenizer.json. Raises `StartError` naming the file."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise StartError(f"{path} is missing: a model is served with its tokenizer beside it")
    try:
        text = path.read_text(encoding="utf-8")
        if text.startswith(LFS_POINTER.decode()):
            raise StartError(f"{path} {POINTER_WORDS}")
        decoder = json.loads(text).get("decoder")
        tokenizer = Tokenizer.from_str(text)
    except StartError:
        raise
    # The library raises plain Exception for whatever it cannot read.
    except Exception as error:
        raise StartError(f"{path} cannot be read as a tokenizer: {error}") from None
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    if not ids:
        raise StartError(f"{path} has no tokens")
    if max(ids) >= vocab_size:
        raise StartError(
            f"{path} goes up to token id {max(ids)}, but the model has {vocab_size} tokens"
        )
    kind = decoder_kind(decoder)
    if kind not in ("ByteLevel", "Fuse"):
        raise StartError(f"{path}: its decoder is {kind}, and only ByteLevel and Fuse are read")
    if kind == "ByteLevel":
        check_bytes(path, tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Vocabulary(tokenizer, vocab_size, byte_level=kind == "ByteLevel")


def check_bytes(path: Path, tokenizer: Tokenizer) -> None:
    """Refuse a byte-level vocabulary that lacks a byte of UTF-8: text would vanish from prompts."""
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}
    for character, byte in ALPHABET.items():
        if byte not in never and tokenizer.token_to_id(character) is None:
            raise StartError(f"{path} has no token for the byte {byte:#04x}")


def decoder_kind(decoder: object) -> str:
    """The kind of a tokenizer.json's `decoder`; a sequence of one is what it holds."""
    if not isinstance(decoder, dict):
        return "none"
    parts = decoder.get("decoders")
    if decoder.get("type") == "Sequence" and isinstance(parts, list) and len(parts) == 1:
        return decoder_kind(parts[0])
    return str(decoder.get("type"))
