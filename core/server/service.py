"""What the routes of one server share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from aiohttp import web

from tensorfold.core.engine_api import Info
from tensorfold.core.errors import CLOSED_WORDS, RequestError, unavailable
from tensorfold.core.lane_host.host import Host
from tensorfold.core.server.bodies import BULK_BYTES, Bodies
from tensorfold.core.server.mailroom import Mailroom
from tensorfold.core.server.metrics import Metrics
from tensorfold.core.server.strangers import Strangers
from tensorfold.core.server.trace_file import LastTurns
from tensorfold.core.settings import Settings
from tensorfold.core.text import Text

LOG = logging.getLogger("tensorfold.server")
Result = TypeVar("Result")
MOST_NAMES_LOGGED, MOST_NAME_LOGGED = 1000, 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """One engine being served. `pool` is where text work happens, off the event loop, and
    `bulk_pool` where that of large bodies does.

    `unknown` holds the request fields that were ignored and logged already, `turns` the last turns
    where they may be asked for.
    """

    info: Info
    host: Host
    text: Text
    settings: Settings
    model: str
    aliases: tuple[str, ...]
    mailroom: Mailroom
    metrics: Metrics
    pool: ThreadPoolExecutor
    bulk_pool: ThreadPoolExecutor
    bodies: Bodies
    turns: LastTurns | None = None
    strangers: Strangers = field(default_factory=Strangers)
    created: int = field(default_factory=lambda: int(time.time()))
    unknown: set[str] = field(default_factory=set)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.model, *(name for name in self.aliases if name != self.model))

    async def off_loop(self, work: Callable[[], Result], size: int) -> Result:
        """Text work on a body of `size` bytes; large ones take turns and hold no small one up."""
        pool = self.bulk_pool if size > BULK_BYTES else self.pool
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def check_model(self, name: str) -> None:
        if not name:
            raise RequestError(
                f"model is required; this server has {', '.join(self.names)}", param="model"
            )
        if name not in self.names:
            raise unknown_model(name, self.names)

    def refuse_if_closed(self) -> None:
        """Refuse new work early, before it is read and tokenized."""
        stats = self.host.stats()
        if stats.lost is not None:
            raise unavailable(f"the engine is lost: {stats.lost}")
        if stats.closing or not stats.alive:
            raise unavailable(CLOSED_WORDS)

    def log_unknown(self, names: set[str]) -> None:
        """Tell once of each field that is ignored, by the start of its name."""
        for name in sorted({name[:MOST_NAME_LOGGED] for name in names} - self.unknown):
            if len(self.unknown) < MOST_NAMES_LOGGED:
                self.unknown.add(name)
                LOG.warning("ignoring the unknown request field %r", name)


SERVICE = web.AppKey("service", Service)


def unknown_model(name: str, known: Sequence[str]) -> RequestError:
    return RequestError(
        f"The model {name[:200]!r} does not exist; this server has {', '.join(known)}",
        status=404,
        code="model_not_found",
        param="model",
    )
