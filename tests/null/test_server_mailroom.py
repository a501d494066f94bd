"""The way from the engine thread to the readers."""

from __future__ import annotations

import asyncio
import threading

from tensorfold.core.lane_host.stream import Delivery, End
from tensorfold.core.server.mailroom import Inbox, Mailroom


def test_a_loop_that_is_behind_is_woken_once_and_loses_nothing() -> None:
    async def read() -> None:
        loop = asyncio.get_running_loop()
        wakes = 0
        right = loop.call_soon_threadsafe

        def counted(*args: object, **given: object) -> asyncio.Handle:
            nonlocal wakes
            wakes += 1
            return right(*args, **given)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        ends: list[End] = []
        mailroom = Mailroom(loop, ends.append)
        inbox = mailroom.inboxes[1] = Inbox([1])

        def deliver() -> None:
            for token in range(5000):
                mailroom.deliver([Delivery(stream=1, tokens=(token,))])
            mailroom.deliver([Delivery(stream=1, end=End(reason="length"))])

        # The loop takes nothing while the engine delivers: this thread waits for it.
        engine = threading.Thread(target=deliver)
        engine.start()
        engine.join()
        taken = await inbox.take(5)
        tokens = [token for delivery in taken for token in delivery.tokens]
        assert tokens == list(range(5000))
        assert [end.reason for end in ends] == ["length"]
        assert wakes == 1

    asyncio.run(read())
