"""The engine's records as bytes and back: plain data of known kinds, nothing that can be called."""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from operator import attrgetter
from typing import Any

from tensorfold.core.engine_api import Filled, Opening, Piece, Sampling, Saved, Window
from tensorfold.core.token_ids import as_words

KINDS: Mapping[str, Any] = {
    kind.__name__: kind for kind in (Opening, Piece, Sampling, Saved, Window)
}
NAMES: Mapping[str, tuple[str, ...]] = {
    name: tuple(item.name for item in fields(kind)) for name, kind in KINDS.items()
}
# All of a record's values, in the order of its names.
VALUES: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*NAMES[name]) for name, kind in KINDS.items()
}
KIND, BYTES, IDS, OF = "kind", "bytes", "ids", "of"
# A record's lists of numbers from this length on are one text of four bytes a number.
MANY = 64


class Unreadable(Exception):
    """Bytes that are no record of ours, in words."""


def plain(value: Any) -> dict[str, Any]:
    """What is no plain data, as a table."""
    if isinstance(value, bytes):
        return {KIND: BYTES, OF: value.hex()}
    kind = type(value)
    assert kind in VALUES, value
    of = [
        entry if type(entry) is not tuple or len(entry) < MANY else shorter(entry)
        for entry in VALUES[kind](value)
    ]
    return {KIND: kind.__name__, OF: of}


ENCODER = json.JSONEncoder(separators=(",", ":"), default=plain)


def encode(value: Any) -> bytes:
    """Records, numbers, texts, bytes, and tuples and tables of them; no table has a `kind`."""
    return ENCODER.encode(value).encode()


def shorter(value: Sequence[Any]) -> Any:
    packed = in_one(value)
    return value if packed is None else packed


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
    return {KIND: IDS, OF: b64encode(raw).decode()}


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
        return tuple([whole(entry) for entry in value])
    if not isinstance(value, dict):
        return value
    kind = value.get(KIND)
    if kind is None:
        return {name: whole(entry) for name, entry in value.items()}
    of = value[OF]
    if kind == BYTES:
        return bytes.fromhex(of)
    if kind == IDS:
        return out_of_one(of)
    return KINDS[kind](**dict(zip(NAMES[kind], map(whole, of), strict=True)))


def digest(result: Any) -> str:
    """A short hash of what a call gave. Bytes of a kept state are each rank's own."""
    if isinstance(result, list | tuple):
        result = [own_bytes_aside(entry) for entry in result]
    return blake2b(repr(result).encode(), digest_size=16).hexdigest()


def own_bytes_aside(entry: Any) -> Any:
    if isinstance(entry, Filled) and entry.saved is not None:
        return replace(entry, saved=replace(entry.saved, bytes=0))
    return entry
