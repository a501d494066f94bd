"""A reply's tokens into text, token by token: reasoning, content, stops.

One machine serves both threads. On the engine thread it decides at which token a reply ends; on
the server's thread it gives the text. Both see the same tokens, so both reach the same verdict.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorfold.core.text.stops import Finder, Found
from tensorfold.core.text.tokenizer import Vocabulary

Section = Literal["reasoning", "content"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Markers:
    """The texts around reasoning, and their token ids where the vocabulary has them."""

    open: str
    close: str
    open_id: int | None
    close_id: int | None

    @property
    def as_tokens(self) -> bool:
        return self.open_id is not None and self.close_id is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingRules:
    """How a reply is read. `markers` is none where a reply has no sections.

    `reasoning` tells that the prompt has opened the reasoning already. A token of `end_tokens` is
    the reply's last and no text of it.
    """

    vocabulary: Vocabulary
    markers: Markers | None = None
    reasoning: bool = False
    stops: tuple[str, ...] = ()
    end_tokens: frozenset[int] = frozenset()
    skip_special: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A run of text of one section; never empty."""

    section: Section
    text: str


class Reader:
    """The reading of one reply. Feed it every token, then call `finish` once.

    `stopped` is the stop string that ended the content, if one did; `reasoning_tokens` counts the
    tokens up to the end of the reasoning, its marker included.
    """

    def __init__(self, rules: ReadingRules) -> None:
        self.rules = rules
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.section: Section = "reasoning" if rules.reasoning and rules.markers else "content"
        # Reasoning may open only before anything but white space, and only once.
        self.may_open = rules.markers is not None and self.section == "content"
        self.marker = self.marker_finder()
        self.stop_finder = Finder(rules.stops) if rules.stops else None
        self.stopped: str | None = None
        self.reasoning_tokens = 0
        self.parts: list[Part] = []

    def marker_finder(self) -> Finder | None:
        """The text to watch for where the markers are no tokens of their own."""
        markers = self.rules.markers
        if markers is None or markers.as_tokens:
            return None
        if self.section == "reasoning":
            return Finder((markers.close,))
        return Finder((markers.open,)) if self.may_open else None

    def feed(self, tokens: Sequence[int]) -> list[Part]:
        """The text that these tokens make certain, in order."""
        for token in tokens:
            if self.stopped is not None:
                break
            if self.section == "reasoning":
                self.reasoning_tokens += 1
            self.take(token)
        return self.taken()

    def take(self, token: int) -> None:
        rules = self.rules
        if token in rules.end_tokens:
            return
        if self.turned(token):
            return
        if rules.skip_special and token in rules.vocabulary.special:
            return
        self.read(self.decoder.decode(rules.vocabulary.bytes_of(token)))

    def turned(self, token: int) -> bool:
        """Whether this token is a marker that turned the section."""
        markers = self.rules.markers
        if markers is None or not markers.as_tokens:
            return False
        if self.section == "reasoning" and token == markers.close_id:
            self.read(self.decoder.decode(b"", True))
            self.decoder.reset()
            self.section = "content"
            return True
        if self.may_open and token == markers.open_id:
            self.enter_reasoning()
            self.reasoning_tokens += 1
            return True
        return False

    def enter_reasoning(self) -> None:
        self.may_open = False
        self.section = "reasoning"

    def read(self, text: str) -> None:
        """Take decoded text through the markers that are texts, then to its section."""
        while text and self.marker is not None:
            found = self.marker.feed(text)
            if isinstance(found, Found):
                text = self.turn_at(found)
                continue
            # A reply that begins with anything but its marker has no reasoning to look for.
            if self.section == "content" and found.strip():
                found += self.marker.flush()
                self.marker = None
            text = found
            break
        self.emit(text)

    def turn_at(self, found: Found) -> str:
        """Turn the section at a marker's text; the text still to be read."""
        if self.section == "reasoning":
            self.emit(found.before)
            self.section = "content"
            self.marker = None
            return found.after
        if found.before.strip():
            self.marker = None
            return found.before + found.text + found.after
        self.emit(found.before)
        self.enter_reasoning()
        self.marker = self.marker_finder()
        return found.after

    def emit(self, text: str) -> None:
        if not text or self.stopped is not None:
            return
        if self.section == "reasoning":
            self.put(text)
            return
        self.may_open = self.may_open and not text.strip()
        if self.stop_finder is None:
            self.put(text)
            return
        found = self.stop_finder.feed(text)
        if isinstance(found, Found):
            self.stopped = found.text
            text = found.before
        else:
            text = found
        self.put(text)

    def put(self, text: str) -> None:
        if text:
            self.parts.append(Part(section=self.section, text=text))

    def taken(self) -> list[Part]:
        parts, self.parts = self.parts, []
        merged: list[Part] = []
        for part in parts:
            if merged and merged[-1].section == part.section:
                part = Part(section=part.section, text=merged.pop().text + part.text)
            merged.append(part)
        return merged

    def finish(self) -> list[Part]:
        """What was held back, once the reply has ended: nothing after a stop."""
        if self.stopped is None:
            self.read(self.decoder.decode(b"", True))
        if self.stopped is None:
            if self.marker is not None:
                self.emit(self.marker.flush())
            if self.stop_finder is not None:
                self.put(self.stop_finder.flush())
        return self.taken()


def ends_at_stop(rules: ReadingRules) -> Callable[[Sequence[int]], bool]:
    """The `ends` of a job: whether the reply so far, newest token included, completes a stop.

    Made for one reply and asked in order; each call reads only tokens it has not seen.
    """
    reader = Reader(rules)
    seen = 0

    def ends(tokens: Sequence[int]) -> bool:
        nonlocal seen
        reader.feed(tokens[seen:])
        seen = len(tokens)
        return reader.stopped is not None

    return ends
