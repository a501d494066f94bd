"""A request's body into checked values; every refusal names the field and the value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorfold.core.errors import RequestError
from tensorfold.core.token_ids import all_below

MOST_DEPTH = 64
SURROGATE = re.compile(r"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
SHOWN = 80
# Kinds of JSON of which every value is a good one, and holds no other.
PLAIN = frozenset({int, bool, type(None)})


def shown(value: object) -> str:
    """A value for a message: as JSON writes it, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def parse_object(body: bytes) -> dict[str, Any]:
    """A body as a JSON object, free of anything that JSON, UTF-8 or good sense does not allow."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: byte {error.start} is broken") from None
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep() from None
    except json.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    except ValueError:
        raise RequestError("the body is not JSON that can be read: a number is too long") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    check_values(value, surrogates=SURROGATE.search(text) is not None)
    return value


def too_deep() -> RequestError:
    return RequestError(f"the body is nested more than {MOST_DEPTH} deep")


def check_values(value: dict[str, Any], *, surrogates: bool) -> None:
    """Refuse depth, numbers that are no numbers, and lone surrogates, wherever they stand.

    What is held meanwhile is bounded by the depth, and a path is written out only to refuse: keys
    and arrays may be as large as the body.
    """
    path: list[Any] = []
    levels = [pairs_of(value)]
    while levels:
        for key, item in levels[-1]:
            if surrogates and type(key) is str:
                check_surrogates(path, key)
            kind = type(item)
            if kind is dict or kind is list:
                if len(levels) == MOST_DEPTH:
                    raise too_deep()
                # Token ids are many.
                if kind is list and PLAIN.issuperset(map(type, item)):
                    continue
                path.append(key)
                levels.append(pairs_of(item))
                break
            if kind is float and not math.isfinite(item):
                where = written([*path, key])
                raise RequestError(f"{where} must be a finite number, not {item!r}", param=where)
            if surrogates and kind is str:
                check_surrogates([*path, key], item)
        else:
            levels.pop()
            if path:
                path.pop()


def pairs_of(holder: dict[str, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    return iter(holder.items()) if isinstance(holder, dict) else enumerate(holder)


def written(path: Sequence[Any]) -> str:
    """A path as it is told to whoever sent it: in ASCII, each key shortened."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
            continue
        shortened = key if len(key) <= SHOWN else key[:SHOWN] + "..."
        text += ("." if text else "") + shortened.encode("ascii", "backslashreplace").decode()
    return text


def check_surrogates(path: Sequence[Any], text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        lone, where = f"\\u{ord(text[error.start]):04x}", written(path) or "the body"
        raise RequestError(f"{where} holds a lone surrogate, {lone}", param=where) from None


class Fields:
    """Typed reading of one JSON object. What was not read is unknown.

    A null is as good as an absent field everywhere.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.values = values
        self.path = path
        self.read: set[str] = set()

    def name(self, field: str) -> str:
        return f"{self.path}.{field}" if self.path else field

    def get(self, field: str) -> Any:
        self.read.add(field)
        return self.values.get(field)

    def unknown(self) -> set[str]:
        return set(self.values) - self.read

    def wrong(self, field: str, wanted: str) -> RequestError:
        name = self.name(field)
        message = f"{name} must be {wanted}, not {shown(self.values.get(field))}"
        return RequestError(message, param=name)

    def boolean(self, field: str, default: bool = False) -> bool:
        value = self.get(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(field, "true or false")
        return value

    def integer(self, field: str, least: int, most: int) -> int | None:
        value = self.get(field)
        if value is None:
            return None
        # JSON has one kind of number: 1.0 is the integer 1 to some clients' writers.
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(field, f"an integer from {least} to {most}")
        return value

    def number(self, field: str, least: float, most: float, *, above: bool = False) -> float | None:
        """`above` leaves `least` itself out."""
        value = self.get(field)
        if value is None:
            return None
        allowed = isinstance(value, int | float) and not isinstance(value, bool)
        if not allowed or not least <= value <= most or (above and value == least):
            start = f"above {least:g}" if above else f"from {least:g}"
            raise self.wrong(field, f"a number {start} to {most:g}")
        return float(value)

    def text(self, field: str) -> str | None:
        value = self.get(field)
        if value is not None and not isinstance(value, str):
            raise self.wrong(field, "a string")
        return value

    def choice(self, field: str, choices: tuple[str, ...]) -> str | None:
        value = self.get(field)
        if value is not None and value not in choices:
            raise self.wrong(field, "one of " + ", ".join(choices))
        return value

    def object(self, field: str) -> dict[str, Any] | None:
        value = self.get(field)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(field, "an object")
        return value

    def array(self, field: str) -> list[Any] | None:
        value = self.get(field)
        if value is not None and not isinstance(value, list):
            raise self.wrong(field, "an array")
        return value

    def token_ids(self, field: str, vocab_size: int) -> tuple[int, ...]:
        value = self.array(field)
        return () if value is None else token_ids(self.name(field), value, vocab_size)

    def refuse_unless(self, field: str, neutral: tuple[Any, ...]) -> None:
        """Refuse a field that is known but does nothing here, unless its value asks for nothing."""
        value = self.get(field)
        if value is None or any(type(value) is type(one) and value == one for one in neutral):
            return
        name = self.name(field)
        raise RequestError(
            f"{name} is not supported: {shown(value)}", code="unsupported_parameter", param=name
        )


def token_ids(name: str, value: list[Any], vocab_size: int) -> tuple[int, ...]:
    """A list of token ids of a vocabulary."""
    if not value or ({*map(type, value)} == {int} and all_below(value, vocab_size)):
        return tuple(value)
    for index, id in enumerate(value):
        if type(id) is not int or not 0 <= id < vocab_size:
            where = f"{name}[{index}]"
            raise RequestError(
                f"{where} must be a token id from 0 to {vocab_size - 1}, not {shown(id)}",
                param=name,
            )
    raise AssertionError(f"{name} holds a bad token id, and none was found")
