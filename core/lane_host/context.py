"""What a drafter may read of a stream: its prompt, its reply so far, what is forced next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class Context(Sequence[int]):
    """A read-only view: it grows with the reply, nothing is copied but what is asked for.

    `forced` are the tokens that are sure to follow the reply so far.
    """

    __slots__ = ("_prompt", "_reply", "forced")

    def __init__(self, prompt: tuple[int, ...], reply: list[int]) -> None:
        self._prompt = prompt
        self._reply = reply
        self.forced: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._prompt) + len(self._reply) + len(self.forced)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        prompt = len(self._prompt)
        if isinstance(place, slice):
            first = place.start
            # What came since it was last looked at: every drafter asks for that in every round.
            if type(first) is int and first >= prompt and place.stop is place.step is None:
                coming = self._reply[first - prompt :]
                return coming if not self.forced else self.run(first, len(self))
            start, stop, step = place.indices(len(self))
            if step == 1 and start >= prompt and not self.forced:
                return self._reply[start - prompt : max(start, stop) - prompt]
            if step == 1:
                return self.run(start, max(start, stop))
            return [self.at(index, prompt) for index in range(start, stop, step)]
        if not -len(self) <= place < len(self):
            raise IndexError(f"place {place} of {len(self)} tokens")
        return self.at(place % len(self), prompt)

    def run(self, start: int, stop: int) -> list[int]:
        """Part by part: a long prompt is read at once."""
        found: list[int] = []
        for part in (self._prompt, self._reply, self.forced):
            found += part[max(0, start) : max(0, stop)]
            start, stop = start - len(part), stop - len(part)
        return found

    def at(self, index: int, prompt: int) -> int:
        if index < prompt:
            return self._prompt[index]
        index -= prompt
        reply = len(self._reply)
        return self._reply[index] if index < reply else self.forced[index - reply]
