"""Drafters of tests: some know the reply, some are wrong at times, some break the seam's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorfold.backends.fake import model
from tensorfold.core.drafter_api import Guesses
from tensorfold.core.keyed import mix
from tensorfold.core.lane_host.stream import Job
from tests.null.hosting import solo

Propose = Callable[[Sequence[int], int], Any]


class Drafter:
    """A drafter of every stream by one function. `told` collects what it was told, `contexts` the
    lengths of what it was given."""

    def __init__(self, name: str, propose: Propose) -> None:
        self.name = name
        self.summary = "a drafter of a test"
        self.ask = propose
        self.told: list[int] = []
        self.contexts: list[int] = []

    def begin(self) -> Drafter:
        return self

    def propose(self, context: Sequence[int], most: int) -> Any:
        self.contexts.append(len(context))
        return self.ask(context, most)

    def landed(self, accepted: int) -> None:
        self.told.append(accepted)

    def rest(self, context: Sequence[int]) -> None:
        return None


def knowing(jobs: Mapping[int, Job]) -> Propose:
    """Guesses that are right: by the job whose prompt the context begins with."""

    def propose(context: Sequence[int], most: int) -> Guesses:
        for made in jobs.values():
            rows = len(made.prompt)
            if tuple(context[:rows]) != made.prompt:
                continue
            whole = solo(made)
            so_far = len(context) - rows
            if list(context[rows:]) == whole[:so_far]:
                coming = whole[so_far : so_far + most]
                return Guesses(coming, [0.9] * len(coming))
        return Guesses()

    return propose


def mistaken(right: Propose, salt: int) -> Propose:
    """As many of the right guesses as chance will have, with a wrong one among them or not."""

    def propose(context: Sequence[int], most: int) -> Guesses:
        draw = mix(len(context) * 1009 + salt)
        tokens, _ = right(context, most)
        tokens = list(tokens[: draw % (most + 1)])
        wrong = draw // 64 % (2 * most)
        if wrong < len(tokens):
            tokens[wrong] = (tokens[wrong] + 1 + draw // 4096 % 95) % model.VOCAB
        return Guesses(tokens, [(draw >> row & 15) / 15 for row in range(len(tokens))])

    return propose


class Odd(Exception):
    pass


def raises(context: Sequence[int], most: int) -> Any:
    raise Odd("the drafter slipped")


# Answers that the seam refuses, and how it says so.
LIES: dict[str, tuple[Propose, str]] = {
    "raises": (raises, "Odd: the drafter slipped"),
    "outside": (lambda context, most: ([model.VOCAB], [0.5]), "is no token from 0 to 96"),
    "negative": (lambda context, most: ([-1], [0.5]), "is no token from 0 to 96"),
    "words": (lambda context, most: (["a"], [0.5]), "is no token from 0 to 96"),
    "booleans": (lambda context, most: ([True], [0.5]), "is no token from 0 to 96"),
    "fractions": (lambda context, most: ([1.0], [0.5]), "is no token from 0 to 96"),
    "too sure": (lambda context, most: ([1], [1.5]), "is not from 0 to 1"),
    "below": (lambda context, most: ([1], [-0.1]), "is not from 0 to 1"),
    "no number": (lambda context, most: ([1] * 2, [0.5, float("nan")][:2]), "is not from 0 to 1"),
    "no numbers": (lambda context, most: ([1], [None]), "TypeError"),
    "fewer chances": (lambda context, most: ([1], []), "1 guesses with 0 chances"),
    "too many": (lambda context, most: ([1] * 99, [0.5] * 99), "99 guesses, and"),
    "none": (lambda context, most: None, "TypeError"),
    "three": (lambda context, most: (1, 2, 3), "ValueError"),
    "writes": (lambda context, most: context.__setitem__(0, 1), "AttributeError"),  # type: ignore
}


# -- forced tokens -----------------------------------------------------------------------------


def after_threes(tokens: Sequence[int]) -> tuple[int, ...]:
    """After a token that three divides come two more that it does not, and one at the start."""
    if not tokens:
        return (40,)
    if tokens[-1] % 3 == 0:
        return (50, 52)
    return (52,) if tokens[-1] == 50 else ()


def long_words(tokens: Sequence[int]) -> tuple[int, ...]:
    """Twelve tokens at a time, more than any window here holds."""
    word = (61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 76, 77)
    for said in range(len(word) - 1, 0, -1):
        if tuple(tokens[-said:]) == word[:said]:
            return word[said:]
    return word if tokens and tokens[-1] % 5 == 0 else ()
