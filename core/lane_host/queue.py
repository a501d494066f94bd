"""The order in which waiting replies are admitted."""

from __future__ import annotations

from collections import OrderedDict

from tensorfold.core.lane_host.replies import Reply


class Queue:
    """Foreground before background, first come first served inside each.

    A background reply joins the foreground `background_after` seconds after its submission, as if
    it had come at that moment; so the order needs no clock. Every call costs the same however many
    wait.
    """

    def __init__(self, background_after: float) -> None:
        self.background_after = background_after
        self.foreground: OrderedDict[int, Reply] = OrderedDict()
        self.background: OrderedDict[int, Reply] = OrderedDict()

    def __len__(self) -> int:
        return len(self.foreground) + len(self.background)

    def add(self, reply: Reply) -> None:
        line = self.background if reply.job.background else self.foreground
        line[reply.stream] = reply

    def remove(self, reply: Reply) -> None:
        line = self.background if reply.job.background else self.foreground
        line.pop(reply.stream, None)

    def first(self, most: int) -> list[Reply]:
        """The first `most` replies of the queue, in the order of their admission."""
        order: list[Reply] = []
        front, back = iter(self.foreground.values()), iter(self.background.values())
        fore, aged = next(front, None), next(back, None)
        while len(order) < most and (fore is not None or aged is not None):
            if fore is None or (aged is not None and self.joins_before(aged, fore)):
                assert aged is not None
                order.append(aged)
                aged = next(back, None)
            else:
                order.append(fore)
                fore = next(front, None)
        return order

    def joins_before(self, aged: Reply, fore: Reply) -> bool:
        return aged.submitted + self.background_after < fore.submitted
