"""Taking a config.json apart, key by key: what cannot be used is refused by key and value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tensorfold.core.errors import StartError


class Reader:
    """Takes keys out of one object of config.json, naming key and value in what it refuses."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def refuse(self, key: str, why: str) -> StartError:
        shown = repr(self.values.get(key, "absent"))
        return StartError(f"config.json: {self.where}{key} is {shown}: {why}")

    def size(self, key: str, least: int = 1) -> int:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(key, f"a whole number of at least {least} is needed")
        return value

    def number(self, key: str) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(key, "a number is needed")
        # JSON as Python reads it has NaN and infinities.
        if not math.isfinite(value):
            raise self.refuse(key, "a finite number is needed")
        return float(value)

    def positive(self, key: str) -> float:
        value = self.number(key)
        if not value > 0:
            raise self.refuse(key, "a number above 0 is needed")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false is needed")
        return value

    def sizes(self, key: str, length: int | None = None, least: int = 0) -> tuple[int, ...]:
        value = self.values.get(key)
        wanted = "a list of" if length is None else f"a list of {length}"
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise self.refuse(key, f"{wanted} whole numbers is needed")
        for entry in value:
            if isinstance(entry, bool) or not isinstance(entry, int) or entry < least:
                raise self.refuse(key, f"whole numbers of at least {least} are needed")
        return tuple(value)

    def names(self, key: str, length: int, allowed: tuple[str, ...]) -> tuple[str, ...]:
        value = self.values.get(key)
        if not isinstance(value, list) or len(value) != length:
            raise self.refuse(key, f"a list of {length} names is needed")
        for name in value:
            if name not in allowed:
                raise self.refuse(key, f"{name!r} is none of {', '.join(allowed)}")
        return tuple(value)

    def only(self, key: str, *allowed: Any) -> None:
        """The key must be absent or hold one of these values; all else is not supported."""
        if key in self.values and self.values[key] not in allowed:
            wanted = " or ".join(repr(value) for value in allowed)
            raise self.refuse(key, f"only {wanted} is supported")

    def inside(self, key: str) -> Reader:
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.refuse(key, "an object is needed")
        return Reader(value, f"{self.where}{key}.")


def end_ids(text: Reader, vocab: int) -> tuple[int, ...]:
    value = text.values.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
            raise text.refuse("eos_token_id", f"token ids below vocab_size {vocab} are needed")
    return tuple(ids)
