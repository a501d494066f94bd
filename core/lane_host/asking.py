"""Whether the engine is asked for drafts, stream by stream: while they pay, and at times to see.

Asking is a part of a round's cost, whatever comes of it. Streams for which it does not pay are not
asked; what has been learned of their drafts grows old, so after a while everyone is asked for a few
rounds, and the choice is made anew. The while doubles each time that nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorfold.core.engine_api import Info
from tensorfold.core.lane_host.chances import Source, expected
from tensorfold.core.lane_host.costs import Costs
from tensorfold.core.lane_host.guessing import HEAD, Guessing
from tensorfold.core.lane_host.replies import Reply
from tensorfold.core.lane_host.rounds import Offer, worth_asking

# Rounds between two looks at the choice, and those in which everyone is asked to see.
REVIEW = 8
PROBE = 6
# Rounds until the first look at what was given up, and until the last. Looking takes at most this
# share of the rounds' time, but for the last.
LEAST_REST, MOST_REST = 64, 4096
MOST_SHARE = 0.01
# Rounds that ask until one does not, to see what the rest of it takes.
PLAIN = 64
FIRST_PLAIN = 12
# By how much a change has to be better.
MARGIN = 1.02
# Drafts of which nothing is known are looked at, unless asking takes so many times a round.
MOST_DEAR = 3.0


class Asking:
    """The choice for a host's live streams. `pays`: whether a stream that begins is asked."""

    def __init__(self, info: Info, costs: Costs, head: Source) -> None:
        self.info = info
        self.costs = costs
        self.head = head
        self.pays = True
        self.tried = False
        self.rest = LEAST_REST
        self.probing = 0
        self.paused: list[Guessing] = []
        self.until_plain = FIRST_PLAIN
        self.rested = 0
        self.until_review = 0
        self.seen = 0

    def is_due(self, replies: Sequence[Reply]) -> bool:
        """Asked once a round: whether it is time for a `review`. Begins a look at what was given up
        when that has rested long enough."""
        if not self.costs.rows:
            return False
        self.until_review -= 1
        if self.paused:
            for each in self.paused:
                each.asks = True
            self.paused = []
        if self.probing:
            self.probing -= 1
            return not self.probing
        guessing = [reply.guessing for reply in replies if reply.guessing is not None]
        asking = [each for each in guessing if each.asks]
        self.rested = 0 if len(asking) == len(guessing) else self.rested + 1
        if self.costs.since_plain >= self.until_plain:
            self.until_plain = PLAIN
            self.costs.since_plain = 0
            self.paused = asking
            for each in asking:
                each.asks = False
            return False
        if self.rested < self.rest:
            return self.until_review <= 0 or self.seen != len(replies)
        self.rest = min(2 * self.rest, MOST_REST)
        self.probe(guessing)
        return False

    def probe(self, guessing: Sequence[Guessing]) -> None:
        """Ask for everyone's drafts for a few rounds, to learn what they are worth by now."""
        self.tried = self.pays = True
        self.rested = 0
        self.probing = PROBE
        for each in guessing:
            each.asks = True

    def review(self, replies: Sequence[Reply], offers: Sequence[Offer]) -> None:
        """Choose for the next rounds. `offers` are what the streams have without the engine's
        drafts."""
        self.until_review = REVIEW
        self.seen = len(replies)
        minds = [reply.guessing for reply in replies]
        if not self.tried and self.is_worth_a_look(len(replies), minds):
            self.probe([mind for mind in minds if mind is not None])
            return
        drafts = [self.expected(mind) for mind in minds]
        worth = worth_asking(
            offers, drafts, self.info.round_rows, self.costs.rows, self.costs.drafting
        )
        self.pays = worth.rate > worth.without * (1 / MARGIN if self.pays else MARGIN)
        for mind, asks in zip(minds, worth.asking, strict=True):
            if mind is not None:
                mind.asks = self.pays and asks
        if all(mind.asks for mind in minds if mind is not None):
            self.rest = LEAST_REST
        else:
            asking = sum(mind is not None for mind in minds)
            # What a look takes if nothing comes of it, in rounds.
            lost = PROBE * self.costs.drafting[asking] / self.plain(len(replies))
            self.rest = min(max(self.rest, int(lost / MOST_SHARE)), MOST_REST)

    def is_worth_a_look(self, streams: int, minds: Sequence[Guessing | None]) -> bool:
        asking = sum(mind is not None for mind in minds)
        return 0 < self.costs.drafting[asking] <= MOST_DEAR * self.plain(streams)

    def plain(self, streams: int) -> float:
        """What a round takes in which each stream has one row, as far as it holds them."""
        return self.costs.rows[min(streams, self.info.round_rows)]

    def expected(self, mind: Guessing | None) -> Sequence[float]:
        """The chances of a stream's drafts, if it were asked for them; none if it takes none."""
        if mind is None:
            return ()
        return expected(self.head, mind.fared[HEAD], self.info.drafts)
