"""Drafts of a host: the windows of a round, and what is learned when it has landed.

What a round has to wait for is kept small: learning from the last one, and the choice of whom to
ask for drafts, happen while the next is in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorfold.core.drafter_api import HostDrafter
from tensorfold.core.engine_api import Info, Window
from tensorfold.core.lane_host.asking import Asking
from tensorfold.core.lane_host.costs import Costs
from tensorfold.core.lane_host.figures import Figures
from tensorfold.core.lane_host.guessing import HEAD, Guessers, Guessing, Lesson
from tensorfold.core.lane_host.replies import Reply
from tensorfold.core.lane_host.rounds import (
    CHANCES,
    FORCED,
    SOURCE,
    SOURCES,
    TOKENS,
    Offer,
    chained,
    share,
    wanted,
)
from tensorfold.core.lane_host.stream import nothing


class Drafting:
    """What the lane host drafts with, over its live streams."""

    def __init__(
        self,
        info: Info,
        drafters: Sequence[HostDrafter],
        live: Mapping[int, Reply],
        figures: Figures,
    ) -> None:
        self.info = info
        self.live = live
        self.figures = figures
        self.guessers = Guessers(drafters, info.vocab_size)
        figures.sources, figures.faults = self.guessers.names, self.guessers.faults
        figures.drafted, figures.accepted = self.guessers.drafted, self.guessers.accepted
        self.costs = Costs(info)
        self.asking = Asking(info, self.costs, self.guessers.sources[HEAD])
        self.has_sources = bool(info.drafts or drafters)
        self.most = min(info.window_rows, info.round_rows)
        # What is asked for while a reply is far from its end.
        self.wants = wanted(info.context, info)
        self.lessons: list[tuple[Guessing, Lesson]] = []
        self.last_round: tuple[Sequence[Window], int, float] | None = None

    def begin(self, reply: Reply, drafts: Sequence[int], chances: Sequence[float]) -> None:
        """A stream begins to decode, with the engine's drafts after its first token."""
        if reply.draws and self.has_sources:
            guessing = self.guessers.begin(reply.stream, reply.job.prompt, reply.tokens)
            guessing.asks = self.asking.pays
            guessing.head = drafts, chances
            reply.guessing = guessing

    def first_want(self, reply: Reply) -> int:
        """Drafts to ask for with the first token."""
        return wanted(reply.left - 1, self.info) if reply.draws and self.asking.pays else 0

    # -- before a round ------------------------------------------------------------------------

    def windows(self, replies: Sequence[Reply], at_rest: bool = False) -> list[Window]:
        """One window a stream that takes part, in order. `at_rest`: no prompt is to go in before
        the next round."""
        beside = [reply for reply in replies if reply.guessing is not None or reply.coming]
        if not beside and len(replies) <= self.info.round_rows:
            return [
                Window(
                    stream=reply.stream,
                    tokens=(reply.pending,),
                    goes_on=at_rest and reply.left > 1 and reply.job.forces is nothing,
                )
                for reply in replies
            ]
        offers = [self.offer(reply) for reply in replies]
        extra = 0.0
        if self.has_sources and self.costs.rows:
            asking = [each for each in replies if each.guessing is not None and each.guessing.asks]
            extra = self.costs.drafting[len(asking)]
        granted = share(offers, self.info.round_rows, self.costs.rows, extra)
        return [
            self.window(reply, offer[FORCED], count)
            for reply, offer, count in zip(replies, offers, granted, strict=True)
            if count >= 0
        ]

    def offer(self, reply: Reply) -> Offer:
        """A stream's rows: what is forced as far as it fits, then guesses. Of what is left to
        commit the token after the last row takes one."""
        guessing, forced = reply.guessing, len(reply.coming)
        if guessing is None and not forced:
            return reply.served, 0, ()
        most = (self.most if self.most < reply.left else reply.left) - 1 - forced
        if most < 1:
            if guessing is not None:
                guessing.proposals = []
            return reply.served, min(forced, forced + most), ()
        if guessing is None:
            return reply.served, forced, ()
        guesses = self.guessers.propose(reply.stream, guessing, most, reply.coming)
        if not guesses:
            return reply.served, forced, ()
        chain = chained(guesses, most)
        if reply.job.forces is not nothing:
            chain = reply.free(chain)
        reply.chain = chain
        return reply.served, forced, chain[CHANCES]

    def window(self, reply: Reply, forced: int, count: int) -> Window:
        guessing = reply.guessing
        want = 0
        if guessing is not None and guessing.asks:
            left = reply.left - 1 - forced
            want = self.wants if left > self.wants else wanted(left, self.info)
        guesses = reply.chain[TOKENS][:count] if count else ()
        if not reply.coming:
            return Window(stream=reply.stream, tokens=(reply.pending, *guesses), want=want)
        masks: tuple[bytes | None, ...] = ()
        if forced < len(reply.coming):
            masks = (*[None] * forced, only(reply.coming[forced], self.info.vocab_size))
        tokens = (reply.pending, *reply.coming[:forced], *guesses)
        return Window(stream=reply.stream, tokens=tokens, forced=forced, want=want, masks=masks)

    # -- after a round -------------------------------------------------------------------------

    def landed(self, reply: Reply, window: Window, tokens: Sequence[int], kept: int) -> None:
        """A window landed these tokens, of which the reply kept so many."""
        forced = window.forced
        if forced:
            self.figures.forced += min(kept, forced)
        guessing = reply.guessing
        if guessing is None:
            return
        # What was forced is a part of the reply now.
        guessing.context.forced = ()
        proposals = guessing.proposals
        if not proposals:
            return
        if len(proposals) > 1 or proposals[0][SOURCE] != HEAD:
            self.guessers.tell(reply.stream, guessing, tokens[forced:])
        guessing.due = lesson = proposals, reply.chain[SOURCES], window, tokens, kept
        self.lessons.append((guessing, lesson))

    def measured(self, windows: Sequence[Window], rows: int, seconds: float) -> None:
        """What a round took, by the host's clock."""
        self.last_round = windows, rows, seconds

    def counted(self) -> tuple[tuple[str, int, int], ...]:
        """By source, the guesses that have had a row so far, and those that came true."""
        guessers = self.guessers
        return tuple(zip(guessers.names, guessers.drafted, guessers.accepted, strict=True))

    def catch_up(self) -> None:
        """While a forward is in flight: learn from the last round, and choose whom to ask next."""
        self.guessers.learn(self.lessons)
        self.lessons.clear()
        if not self.has_sources:
            return
        if self.last_round is not None and self.costs.rows:
            windows, rows, seconds = self.last_round
            self.costs.measured(rows, sum([window.want > 0 for window in windows]), seconds)
            self.last_round = None
        replies = list(self.live.values())
        if self.guessers.drafters:
            for reply in replies:
                if reply.guessing is not None:
                    self.guessers.rest(reply.stream, reply.guessing)
        if self.info.drafts and replies and self.asking.is_due(replies):
            self.asking.review(replies, [self.without(reply) for reply in replies])

    def without(self, reply: Reply) -> Offer:
        """A stream's offer in the round in flight, less the engine's drafts."""
        guesses = self.guessers.others(reply.guessing) if reply.guessing is not None else []
        chances = chained(guesses, self.most)[CHANCES] if guesses else ()
        # More may be forced than one window holds.
        forced = min(len(reply.coming), min(self.most, reply.left) - 1)
        return reply.served, forced, chances


def only(token: int, vocab_size: int) -> bytes:
    """The vocabulary mask that allows one token."""
    mask = bytearray(-(-vocab_size // 8))
    mask[token // 8] = 1 << token % 8
    return bytes(mask)
