"""One line of the settings' table, and how its value is read out of text and checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorfold.core.errors import StartError


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """One line of the table. `group` is the part of the engine that it speaks to.

    A value is at least `least`, more than `above` and at most `most`, or it is `unset`. A number
    that has `off` gets a second flag, `--no-NAME`, which gives it that value.
    """

    env: str
    unit: str
    help: str
    group: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    unset: float | None = None
    off: int | None = None
    choices: tuple[str, ...] = ()


def switch(default: Any, env: str, unit: str, group: str, help: str, **limits: Any) -> Any:
    """A field of the table, whose kind of value is its default's; `limits` are `Switch`'s own."""
    entry = Switch(env=env, unit=unit, help=help, group=group, **limits)
    return field(default=default, metadata={"switch": entry})


TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})


def parse(text: str, entry: Switch, default: Any, source: str) -> Any:
    """A setting's value out of text; raises `StartError` that names the source and the value."""
    readers: dict[type, Callable[[str], Any]] = {int: int, float: float, str: str, bool: truth}
    try:
        value = readers[type(default)](text)
    except ValueError:
        kinds = {int: "a whole number", float: "a number", bool: "on or off"}
        raise StartError(f"{source} must be {kinds[type(default)]}, not {text!r}") from None
    return checked(value, entry, source)


def truth(text: str) -> bool:
    """A flag's value in words; raises `ValueError` for any other, an empty one included."""
    lowered = text.strip().lower()
    if lowered in TRUE:
        return True
    if lowered in FALSE:
        return False
    raise ValueError(text)


def checked(value: Any, entry: Switch, source: str) -> Any:
    """A value within its line's bounds; raises `StartError` that names the source and the value."""
    if entry.choices and value not in entry.choices:
        names = ", ".join(filter(None, entry.choices))
        raise StartError(f"{source} must be one of {names}, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise StartError(f"{source} must be a number, not {value!r}")
    if entry.unset is not None and value == entry.unset:
        return value
    if entry.above is not None and value <= entry.above:
        raise StartError(f"{source} must be more than {entry.above:g}, not {value!r}")
    if entry.least is not None and value < entry.least:
        raise StartError(f"{source} must be at least {entry.least:g}, not {value!r}")
    if entry.most is not None and value > entry.most:
        raise StartError(f"{source} must be at most {entry.most:g}, not {value!r}")
    return value
