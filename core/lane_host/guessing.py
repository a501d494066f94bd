"""What each live stream has to guess with: its drafters, how they fare, what they guess now.

A drafter is a stranger: what it answers is checked, and one that raises or answers nonsense is told
of by name and never asked again for that stream. The rest of the host never hears of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from tensorfold.core.drafter_api import Guesses, HostDrafter, StreamDrafter
from tensorfold.core.engine_api import Window
from tensorfold.core.lane_host.chances import Fared, Known, by_depth, calibrated, learn
from tensorfold.core.lane_host.context import Context
from tensorfold.core.lane_host.rounds import SOURCE, Guess

LOG = logging.getLogger("tensorfold.host")

# The engine's own drafts are the first source; the host's drafters follow.
HEAD = 0
HEAD_NAME = "head"
NOTHING = Guesses()
INTEGERS = {int}

# What a round showed of one stream: all guesses, whose its rows were, its window, and the tokens
# that came, with how many of them were kept.
Lesson = tuple[Sequence[Guess], Sequence[int], Window, Sequence[int], int]


class Guessing:
    """One live stream's. `head` holds the engine's drafts and its own chances of them, `asks` tells
    whether it is asked for more. `proposals` are the guesses of the coming round, or of the one in
    flight. `drafted` counts by source the guesses that had a row, `accepted` those that came true;
    `totals` are the same of all streams. `due` is the last round's lesson until it is counted.
    """

    __slots__ = (
        "accepted",
        "asks",
        "context",
        "drafted",
        "drafters",
        "due",
        "fared",
        "head",
        "names",
        "proposals",
        "totals",
    )

    def __init__(
        self,
        prompt: tuple[int, ...],
        reply: list[int],
        drafters: Sequence[StreamDrafter | None],
        names: Sequence[str],
        totals: tuple[list[int], list[int]],
    ) -> None:
        self.names = names
        self.totals = totals
        self.due: Lesson | None = None
        self.context = Context(prompt, reply)
        self.drafters = list(drafters)
        self.fared = [by_depth(Fared) for _ in names]
        self.proposals: list[Guess] = []
        self.head: tuple[Sequence[int], Sequence[float]] = NOTHING
        self.asks = True
        self.drafted = [0] * len(names)
        self.accepted = [0] * len(names)

    def count(self) -> None:
        """Count what is due."""
        if self.due is None:
            return
        _, sources, window, tokens, kept = self.due
        self.due = None
        rows = len(window.tokens) - 1 - window.forced
        # The last of the tokens was no guess, if all were kept.
        accepted = (kept if kept < len(tokens) else kept - 1) - window.forced
        sources = sources[:rows]
        right = sources[:accepted] if accepted > 0 else ()
        for source in {*sources}:
            drafted, came_true = sources.count(source), right.count(source)
            self.drafted[source] += drafted
            self.accepted[source] += came_true
            self.totals[0][source] += drafted
            self.totals[1][source] += came_true

    def by_source(self) -> dict[str, tuple[int, int]]:
        """Of each source that had a row: its rows and those of them that came true."""
        counts = zip(self.names, self.drafted, self.accepted, strict=True)
        return {name: (drafted, accepted) for name, drafted, accepted in counts if drafted}


class Guessers:
    """The sources of a host's guesses. `faults` counts by name what drafters did wrong."""

    def __init__(self, drafters: Sequence[HostDrafter], vocab_size: int) -> None:
        names = [HEAD_NAME, *(drafter.name for drafter in drafters)]
        assert len(set(names)) == len(names), f"a drafter's name is taken: {names}"
        self.drafters = list(drafters)
        self.vocab_size = vocab_size
        # Asked of every round's tokens before the next one: a set answers for several at once.
        self.all_known = frozenset(range(vocab_size)).issuperset
        self.sources = [by_depth(Known) for _ in names]
        self.names = names
        self.faults = dict.fromkeys(names, 0)
        self.drafted, self.accepted = [0] * len(names), [0] * len(names)

    def begin(self, stream: int, prompt: tuple[int, ...], reply: list[int]) -> Guessing:
        """A stream begins to decode."""
        begun: list[StreamDrafter | None] = []
        for place, drafter in enumerate(self.drafters, 1):
            try:
                begun.append(drafter.begin())
            except Exception as error:
                begun.append(None)
                self.report(stream, place, error)
        return Guessing(prompt, reply, begun, self.names, (self.drafted, self.accepted))

    def report(self, stream: int, place: int, error: Exception) -> None:
        name = self.names[place]
        self.faults[name] += 1
        words = f"{type(error).__name__}: {error}"
        LOG.warning("drafter %s guesses no more for stream %d: %s", name, stream, words)

    def give_up(self, stream: int, guessing: Guessing, place: int, error: Exception) -> None:
        guessing.drafters[place - 1] = None
        self.report(stream, place, error)

    # -- before a round ------------------------------------------------------------------------

    def propose(
        self, stream: int, guessing: Guessing, most: int, forced: tuple[int, ...]
    ) -> list[Guess]:
        """Every source's guesses at what follows the forced tokens, at most `most` of each."""
        tokens, own = guessing.head
        proposals: list[Guess] = []
        guessing.proposals = proposals
        if tokens:
            try:
                worth = calibrated(self.sources[HEAD], guessing.fared[HEAD], own)
                assert len(worth) == len(tokens), f"{len(tokens)} drafts, chances {own}"
                known = self.all_known(tokens)
                assert known, f"drafts {tokens}, and tokens are 0 to {self.vocab_size - 1}"
            except Exception as error:
                self.report(stream, HEAD, error)
            else:
                if not forced:
                    proposals.append((tokens, worth, HEAD, own))
                elif tuple(tokens[: len(forced)]) == forced and len(tokens) > len(forced):
                    past = slice(len(forced), None)
                    proposals.append((tokens[past], worth[past], HEAD, own[past]))
        context = guessing.context
        context.forced = forced
        for place, drafter in enumerate(guessing.drafters, 1):
            if drafter is None:
                continue
            try:
                answer = drafter.propose(context, most)
                if answer == NOTHING:
                    continue
                tokens, own = self.checked(answer, most)
                if not tokens:
                    continue
            except Exception as error:
                self.give_up(stream, guessing, place, error)
                continue
            worth = calibrated(self.sources[place], guessing.fared[place], own)
            proposals.append((tokens, worth, place, own))
        return proposals

    def checked(self, answer: Any, most: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """A drafter's answer as it should be, kept from later changes. Raises `ValueError`."""
        tokens, chances = answer
        tokens, chances = tuple(tokens), tuple(chances)
        if len(tokens) != len(chances):
            raise ValueError(f"{len(tokens)} guesses with {len(chances)} chances")
        if len(tokens) > most:
            raise ValueError(f"{len(tokens)} guesses, and {most} were asked")
        if not tokens:
            return (), ()
        if {*map(type, tokens)} != INTEGERS or not self.all_known(tokens):
            raise ValueError(
                f"a guess among {tokens!r} is no token from 0 to {self.vocab_size - 1}"
            )
        # A chance that is no number makes the sum none.
        total = sum(chances)
        if not 0.0 <= min(chances) <= max(chances) <= 1.0 or total != total:
            raise ValueError(f"a chance among {chances!r} is not from 0 to 1")
        return tokens, chances

    def others(self, guessing: Guessing) -> list[Guess]:
        """The guesses of the drafters alone, as they stand now."""
        return [each for each in guessing.proposals if each[SOURCE] != HEAD]

    # -- after a round -------------------------------------------------------------------------

    def tell(self, stream: int, guessing: Guessing, tokens: Sequence[int]) -> None:
        """Tell the drafters how many of their guesses came true, now that these tokens have."""
        for guesses, _, source, _ in guessing.proposals:
            drafter = guessing.drafters[source - 1] if source != HEAD else None
            if drafter is None:
                continue
            try:
                drafter.landed(num_equal(guesses, tokens))
            except Exception as error:
                self.give_up(stream, guessing, source, error)

    def rest(self, stream: int, guessing: Guessing) -> None:
        """Give every drafter its time while a round is in flight."""
        for place, drafter in enumerate(guessing.drafters, 1):
            if drafter is not None:
                try:
                    drafter.rest(guessing.context)
                except Exception as error:
                    self.give_up(stream, guessing, place, error)

    def learn(self, lessons: Sequence[tuple[Guessing, Lesson]]) -> None:
        """Count and learn what a round showed of each stream, in the order of its windows."""
        sources = self.sources
        for guessing, (proposals, _, window, tokens, _) in lessons:
            guessing.count()
            coming = tokens[window.forced :]
            for guesses, _, source, own in proposals:
                learn(sources[source], guessing.fared[source], guesses, own, coming)


def num_equal(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses came true, from the first one on."""
    count = 0
    for guess, token in zip(guesses, tokens, strict=False):
        if guess != token:
            break
        count += 1
    return count
