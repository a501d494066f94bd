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
from tensorfold.core.lane_host.guessing import HEAD
from tensorfold.core.lane_host.replies import Reply
from tensorfold.core.lane_host.rounds import Offer, worth_asking

# Rounds between two looks at the choice, and those in which everyone is asked to see.
REVIEW = 8
PROBE = 6
# Rounds until the first look at what was given up, and until the last.
LEAST_REST, MOST_REST = 64, 4096
# By how much a change has to be better.
MARGIN = 1.02


class Asking:
    """The choice for a host's live streams. `pays`: whether a stream that begins is asked."""

    def __init__(self, info: Info, costs: Costs, head: Source) -> None:
        self.info = info
        self.costs = costs
        self.head = head
        self.pays = True
        self.rest = LEAST_REST
        self.probing = PROBE
        self.rested = 0
        self.until_review = 0
        self.seen = 0

    def is_due(self, replies: Sequence[Reply]) -> bool:
        """Asked once a round: whether it is time for a `review`. Begins a look at what was given up
        when that has rested long enough."""
        if not self.costs.rows:
            return False
        self.until_review -= 1
        if self.probing:
            self.probing -= 1
            return not self.probing
        guessing = [reply.guessing for reply in replies if reply.guessing is not None]
        self.rested = 0 if all(each.asks for each in guessing) else self.rested + 1
        if self.rested < self.rest:
            return self.until_review <= 0 or self.seen != len(replies)
        self.rested = 0
        self.rest = min(2 * self.rest, MOST_REST)
        self.probing = PROBE
        self.pays = True
        for each in guessing:
            each.asks = True
        return False

    def review(self, replies: Sequence[Reply], offers: Sequence[Offer]) -> None:
        """Choose for the next rounds. `offers` are what the streams have without the engine's
        drafts."""
        self.until_review = REVIEW
        self.seen = len(replies)
        minds = [reply.guessing for reply in replies]
        drafts = [
            expected(self.head, mind.fared[HEAD], self.info.drafts) if mind is not None else ()
            for mind in minds
        ]
        worth = worth_asking(
            offers, drafts, self.info.round_rows, self.costs.rows, self.costs.drafting
        )
        margin = 1 / MARGIN if self.pays else MARGIN
        self.pays = worth.rate > worth.without * margin
        for mind, asks in zip(minds, worth.asking, strict=True):
            if mind is not None:
                mind.asks = self.pays and asks
        if all(mind.asks for mind in minds if mind is not None):
            self.rest = LEAST_REST
