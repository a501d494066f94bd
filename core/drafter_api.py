"""What a drafter of the host is: guesses at a stream's coming tokens, made without the engine.

A drafter changes how fast a reply comes and never a token of it: the engine verifies every guess.
Its calls run on the engine thread between a round and the next, so they must be quick; one that
raises or breaks these words is given up, by name, for the stream that it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Guesses(NamedTuple):
    """Tokens that may come next, in order, and the chance of each given that those before it came.

    Chances are from 0 to 1. They need not be right, only alike: how often guesses with such a
    chance come true is learned.
    """

    tokens: Sequence[int] = ()
    chances: Sequence[float] = ()


class StreamDrafter(Protocol):
    """One stream's drafts."""

    def propose(self, context: Sequence[int], most: int) -> Guesses:
        """At most `most` guesses (1 at least) at what follows `context`: prompt and reply so far.

        A context is read-only and begins with the last one that this stream's drafter was given.
        """
        ...

    def landed(self, accepted: int) -> None:
        """So many of the last proposal's guesses have come true, from its first one on."""
        ...

    def rest(self, context: Sequence[int]) -> None:
        """A round is in flight behind this context: time for work that nobody waits for."""
        ...


class HostDrafter(Protocol):
    """A drafter found through the plugin seam. `name` is what receipts and metrics call it."""

    name: str
    summary: str

    def begin(self) -> StreamDrafter:
        """The drafter of one stream, which begins to decode."""
        ...
