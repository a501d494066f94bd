"""The engine's records as bytes and back: plain data of known kinds, nothing that can be called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any

from tensorfold.core.engine_api import Filled, Opening, Piece, Sampling, Saved, Window

KINDS: Mapping[str, Any] = {
    kind.__name__: kind for kind in (Opening, Piece, Sampling, Saved, Window)
}
KIND, BYTES = "kind", "bytes"


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
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        assert KIND not in value, value
        return {name: plain(entry) for name, entry in value.items()}
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def decode(raw: bytes) -> Any:
    """What was encoded, lists as tuples. Raises `Unreadable`."""
    try:
        return whole(json.loads(raw))
    except (ValueError, TypeError, KeyError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from None


def whole(value: Any) -> Any:
    if isinstance(value, list):
        # Prompts are long and hold numbers alone.
        if set(map(type, value)) == {int}:
            return tuple(value)
        return tuple(whole(entry) for entry in value)
    if not isinstance(value, dict):
        return value
    parts = {name: whole(entry) for name, entry in value.items() if name != KIND}
    kind = value.get(KIND)
    if kind is None:
        return parts
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
