"""The engine's records as bytes and back: plain data of known kinds, nothing that can be called."""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any

from tensorfold.core.engine_api import Filled, Opening, Piece, Sampling, Saved, Window
from tensorfold.core.token_ids import as_words

KINDS: Mapping[str, Any] = {
    kind.__name__: kind for kind in (Opening, Piece, Sampling, Saved, Window)
}
KIND, BYTES, IDS = "kind", "bytes", "ids"
# Lists of numbers from this length on are one text of four bytes a number.
MANY = 64


class Unreadable(Exception):
    """Bytes that are no record of ours, in words."""


def encode(value: Any) -> bytes:
    """Records, numbers, texts, bytes, and tuples and tables of them."""
    return json.dumps(plain(value), separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        assert name in KINDS, name
        parts = {item.name: plain(getattr(value, item.name)) for item in fields(value)}
        return {KIND: name, **parts}
    if isinstance(value, bytes):
        return {KIND: BYTES, "hex": value.hex()}
    if isinstance(value, list | tuple):
        packed = in_one(value) if len(value) >= MANY else None
        return [plain(entry) for entry in value] if packed is None else packed
    if isinstance(value, dict):
        assert KIND not in value, value
        return {name: plain(entry) for name, entry in value.items()}
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def in_one(value: Sequence[Any]) -> dict[str, str] | None:
    """Numbers as one text; none where one of them is no number of four bytes without a sign.

    Prompts are long, and ranks wait for them.
    """
    if set(map(type, value)) != {int}:
        return None
    words = as_words(value)
    if words is None:
        return None
    raw = words.astype("<u4", copy=False).tobytes()
    return {KIND: IDS, "base64": b64encode(raw).decode()}


def out_of_one(text: str) -> tuple[int, ...]:
    raw = b64decode(text, validate=True)
    if len(raw) % 4:
        raise ValueError(f"{len(raw)} bytes of numbers that have four each")
    return struct.unpack(f"<{len(raw) // 4}I", raw)


def decode(raw: bytes) -> Any:
    """What was encoded, lists as tuples. Raises `Unreadable`."""
    try:
        return whole(json.loads(raw))
    except (ValueError, TypeError, KeyError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None


def whole(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(whole(entry) for entry in value)
    if not isinstance(value, dict):
        return value
    parts = {name: whole(entry) for name, entry in value.items() if name != KIND}
    kind = value.get(KIND)
    if kind is None:
        return parts
    if kind == IDS:
        return out_of_one(parts["base64"])
    return bytes.fromhex(parts["hex"]) if kind == BYTES else KINDS[kind](**parts)


def digest(result: Any) -> str:
    """A short hash of what a call gave. Bytes of a kept state are each rank's own."""
    if isinstance(result, list | tuple):
        result = [own_bytes_aside(entry) for entry in result]
    return blake2b(repr(result).encode(), digest_size=16).hexdigest()


def own_bytes_aside(entry: Any) -> Any:
    if isinstance(entry, Filled) and entry.saved is not None:
        return replace(entry, saved=replace(entry.saved, bytes=0))
    return entry
