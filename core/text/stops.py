"""Finding given strings in text that comes piece by piece.

The verdict does not depend on how the text was cut: it is a function of the characters alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def grow(borders: list[int], text: str) -> None:
    """Add the border of the next prefix: the length of its longest proper suffix that is a prefix
    (Knuth, Morris, Pratt 1977)."""
    index, length = len(borders), borders[-1]
    while length and text[index] != text[length]:
        length = borders[length - 1]
    borders.append(length + 1 if text[index] == text[length] else length)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """`before` is text that precedes the string, `text` the string, `after` the rest."""

    before: str
    text: str
    after: str


class Finder:
    """Watches for the first of some strings to be complete, and of several complete at once the
    longest. Holds back only what may still become one of them. What it knows of a string grows with
    what was seen of it: a request may bring long ones, and many replies."""

    def __init__(self, texts: Sequence[str]) -> None:
        assert all(texts), texts
        self.texts = tuple(texts)
        self.tables: dict[int, list[int]] = {}
        self.states = [0] * len(self.texts)
        self.held = ""

    def feed(self, piece: str) -> str | Found:
        """Text that can no longer be part of a match, or the match. After a match, feed no more."""
        for index, character in enumerate(piece):
            if matched := self.step(character):
                seen = self.held + piece[: index + 1]
                self.held = ""
                end = len(seen) - len(matched)
                return Found(before=seen[:end], text=matched, after=piece[index + 1 :])
        seen = self.held + piece
        keep = max(self.states, default=0)
        free = len(seen) - keep
        self.held = seen[free:]
        return seen[:free]

    def step(self, character: str) -> str:
        """Advance every string by one character; the longest one that is now complete, or ''."""
        matched = ""
        for index, text in enumerate(self.texts):
            state = self.states[index]
            if state:
                borders = self.tables[index]
                while state and text[state] != character:
                    state = borders[state - 1]
            if text[state] == character:
                state += 1
                borders = self.tables.setdefault(index, [0])
                if state > len(borders):
                    grow(borders, text)
                if state == len(text):
                    state = borders[state - 1]
                    matched = max(matched, text, key=len)
            self.states[index] = state
        return matched

    def flush(self) -> str:
        """What was held back, once nothing more comes."""
        held, self.held = self.held, ""
        return held
