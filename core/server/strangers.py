"""Connections that bring no request are closed in time: they may not use up what can be open."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp.web import Server
from aiohttp.web_protocol import RequestHandler

LOOKS = 4  # within the time that a first request has


class Strangers:
    """Knows the connections that have brought a request. Event-loop thread only."""

    def __init__(self) -> None:
        self.known: set[object] = set()
        self.since: dict[RequestHandler, float] = {}

    def came(self, connection: object) -> None:
        """A request's head has come over it; from now on the library's own timers hold."""
        self.known.add(connection)

    def look(self, connections: Sequence[RequestHandler], now: float, seconds: float) -> None:
        """Close those that have been without a request for that long."""
        self.known.intersection_update(connections)
        strangers = [one for one in connections if one not in self.known]
        self.since = {one: self.since.get(one, now) for one in strangers}
        for one, since in self.since.items():
            if now - since > seconds:
                one.force_close()

    async def watch(self, server: Server, seconds: float) -> None:
        """Look for as long as the server lives."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(seconds / LOOKS)
            self.look(server.connections, clock(), seconds)
