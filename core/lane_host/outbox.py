"""What readers are owed, gathered on the engine thread and handed over in one call."""

from __future__ import annotations

import contextlib

from tensorfold.core.lane_host.replies import Reply
from tensorfold.core.lane_host.stream import Deliver, Delivery


class Outbox:
    """Replies that owe their readers something, in the order in which they came to owe it.

    A reply owes at most its own tokens and its end, so what waits here is bounded by the replies.
    """

    def __init__(self, deliver: Deliver) -> None:
        self.deliver = deliver
        self.owing: list[Reply] = []

    def owe(self, reply: Reply) -> None:
        if not reply.owed:
            reply.owed = True
            self.owing.append(reply)

    def flush(self) -> None:
        """One call with everything owed; if it raises, everything is still owed."""
        if self.owing:
            self.hand_over(self.owing)
            self.owing = []

    def flush_what_can(self) -> None:
        """The last words of a lost host: together if that works, else one by one."""
        with contextlib.suppress(Exception):
            self.flush()
        for reply in self.owing:
            with contextlib.suppress(Exception):
                self.hand_over([reply])
        self.owing = []

    def hand_over(self, replies: list[Reply]) -> None:
        self.deliver(
            [
                Delivery(
                    stream=reply.stream,
                    tokens=tuple(reply.tokens[reply.sent :]),
                    logprobs=tuple(reply.logprobs),
                    end=reply.end,
                )
                for reply in replies
            ]
        )
        for reply in replies:
            reply.owed = False
            reply.sent = len(reply.tokens)
            reply.logprobs.clear()
