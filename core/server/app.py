"""The server of one engine, from its routes to its exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from tensorfold.core.drafter_api import HostDrafter
from tensorfold.core.engine_api import Engine, Watched
from tensorfold.core.errors import StartError, in_words
from tensorfold.core.lane_host.host import Host, HostOptions
from tensorfold.core.lane_host.stream import HostStats
from tensorfold.core.lane_host.trace import Trace, TurnTrace
from tensorfold.core.server import (
    chat_completions,
    completions,
    debug_turns,
    health,
    info,
    metrics_page,
    models,
    status,
    version,
)
from tensorfold.core.server.bodies import LARGEST_AT_ONCE, Bodies
from tensorfold.core.server.closing import Closing
from tensorfold.core.server.gate import add_headers, gate
from tensorfold.core.server.mailroom import Mailroom
from tensorfold.core.server.metrics import Metrics
from tensorfold.core.server.service import LOG, SERVICE, Service
from tensorfold.core.server.trace_file import LastTurns, TraceFile
from tensorfold.core.server.unreadable import HTTP_LOG
from tensorfold.core.settings import Settings
from tensorfold.core.text import Text

TEXT_THREADS = 2
LOOK_SECONDS = 0.25
# For the last forward to land and the ends to leave; then nothing is waited for.
LAST_SECONDS = 5.0
# For /health to say why an engine of several ranks is lost.
TORN_SECONDS = 2.0


def routes() -> list[web.RouteDef]:
    """Every route with and without `/v1`, since clients put it into their base address or not."""
    both = (
        ("GET", "/models", models.show_all),
        ("GET", "/models/{id:.+}", models.show_one),
        ("POST", "/chat/completions", chat_completions.answer),
        ("POST", "/completions", completions.answer),
        ("GET", "/health", health.show),
        ("GET", "/info", info.show),
        ("GET", "/metrics", metrics_page.show),
        ("GET", "/version", version.show),
    )
    found = [web.get("/", status.show)]
    for method, path, handler in both:
        for prefix in ("", "/v1"):
            if method == "GET":
                found.append(web.get(prefix + path, handler))
            else:
                found.append(web.route(method, prefix + path, handler))
    return found


def build_app(service: Service) -> web.Application:
    app = web.Application(middlewares=[gate], client_max_size=service.settings.body_limit)
    app[SERVICE] = service
    app.add_routes(routes())
    if service.turns is not None:
        app.add_routes([web.get("/debug/turns", debug_turns.show)])
    app.on_response_prepare.append(add_headers)
    return app


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """A server that listens at `address`."""

    service: Service
    address: str
    closing: Closing


@asynccontextmanager
async def serving(
    *,
    engine: Engine,
    text: Text,
    settings: Settings,
    model: str,
    aliases: Sequence[str] = (),
    drafters: Sequence[HostDrafter] = (),
) -> AsyncIterator[Serving]:
    """A server, open until it is left; leaving ends the replies, the host and the engine.

    Raises `StartError` where it cannot listen.
    """
    loop = asyncio.get_running_loop()
    trace = TraceFile(Path(settings.trace)) if settings.trace else None
    turns = LastTurns() if settings.admin else None
    metrics = Metrics()
    mailroom = Mailroom(loop, metrics.ended)
    host = Host(
        engine,
        mailroom.deliver,
        options=host_options(settings),
        trace=both(trace, turns),
        drafters=drafters,
    )
    metrics.watch(host.stats, host.memory)
    if isinstance(engine, Watched):
        engine.watch(host.lose, host.give_up)
    service = Service(
        info=engine.info,
        host=host,
        text=text,
        settings=settings,
        model=model,
        aliases=tuple(aliases),
        mailroom=mailroom,
        metrics=metrics,
        pool=ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text"),
        bulk_pool=ThreadPoolExecutor(1, thread_name_prefix="bulk-text"),
        bodies=Bodies(LARGEST_AT_ONCE * settings.body_limit),
        turns=turns,
    )
    closing = Closing(loop, host, engine)
    runner = web.AppRunner(
        build_app(service),
        handler_cancellation=True,
        access_log=None,
        logger=HTTP_LOG,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    assert runner.server is not None
    watch = loop.create_task(service.strangers.watch(runner.server, settings.read_timeout))
    try:
        address = await listen(runner, settings.host, settings.port)
        host.start()
        yield Serving(service=service, address=address, closing=closing)
    except Exception as error:
        if isinstance(engine, Watched):
            engine.lose(in_words(error))
        raise
    finally:
        closing.begin(0.0)
        if not await closing.wait(LAST_SECONDS):
            LOG.error("the engine did not come to its end; leaving it")
        watch.cancel()
        await runner.cleanup()
        service.pool.shutdown(wait=False)
        service.bulk_pool.shutdown(wait=False)
        if trace is not None:
            trace.close()


def both(first: Trace | None, second: Trace | None) -> Trace | None:
    if first is None or second is None:
        return second if first is None else first

    def trace(turn: TurnTrace) -> None:
        first(turn)
        second(turn)

    return trace


def host_options(settings: Settings) -> HostOptions:
    return HostOptions(
        background_after=settings.background_after,
        skips=settings.skips,
        queue_rows=settings.queue_rows,
        queue_requests=settings.queue_requests,
    )


async def listen(runner: web.AppRunner, host: str, port: int) -> str:
    """Listen, and say where."""
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        why = error.strerror or str(error)
        raise StartError(f"cannot listen on {host} port {port}: {why}") from None
    bound = runner.addresses[0]
    name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
    return f"http://{name}:{bound[1]}"


def run(
    *,
    engine: Engine,
    text: Text,
    settings: Settings,
    model: str,
    aliases: Sequence[str] = (),
    drafters: Sequence[HostDrafter] = (),
    ready: Callable[[str], None] | None = None,
    status: Callable[[HostStats], None] | None = None,
) -> int:
    """Serve until a signal or the engine's loss; the process's exit code. Main thread only.

    `ready` is told the address once it listens, `status` the host's figures a few times a second.
    The first SIGTERM or SIGINT lets replies in progress end within `shutdown_timeout`; the second
    ends them. Raises `StartError` where the server cannot listen.
    """

    log_to_stderr(settings.log)

    async def served() -> int:
        signals = asyncio.Queue[int]()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.put_nowait, number)
        async with serving(
            engine=engine,
            text=text,
            settings=settings,
            model=model,
            aliases=aliases,
            drafters=drafters,
        ) as here:
            if ready is None:
                LOG.info("serving %s at %s", model, here.address)
            else:
                ready(here.address)
            return await until_over(here, signals, status or ignore)

    return asyncio.run(served())


def ignore(stats: HostStats) -> None:
    return None


def log_to_stderr(level: str) -> None:
    """Give the engine's loggers a place and a level, unless whoever runs it has."""
    logger = logging.getLogger("tensorfold")
    logger.setLevel(level.upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)


async def until_over(
    here: Serving, signals: asyncio.Queue[int], status: Callable[[HostStats], None]
) -> int:
    """Watch for the end, and give what is in progress its time; the exit code."""
    host, drain = here.service.host, here.service.settings.shutdown_timeout
    # What is left of a torn engine is of no use to anyone for long.
    leaving = drain if here.service.info.ranks == 1 else min(drain, TORN_SECONDS)
    while True:
        stats = host.stats()
        status(stats)
        if stats.lost is not None:
            LOG.error("the engine is lost: %s; leaving in %g s", stats.lost, leaving)
            # Long enough for whoever watches /health to see why.
            await signalled(signals, leaving)
            return 1
        if await signalled(signals, LOOK_SECONDS):
            break
    LOG.info("shutting down: replies in progress have %g s", drain)
    here.closing.begin(drain)
    clock = asyncio.get_running_loop().time
    end = clock() + drain + LAST_SECONDS
    while not await here.closing.wait(LOOK_SECONDS):
        status(host.stats())
        if not signals.empty():
            host.close_now()
            end = min(end, clock() + LAST_SECONDS)
        if clock() > end:
            # A device that hangs is left to the end of the process.
            LOG.error("the engine did not come to its end in time")
            return 1
    return 0 if host.stats().lost is None else 1


async def signalled(signals: asyncio.Queue[int], seconds: float) -> bool:
    """Whether a signal came within that time."""
    try:
        async with asyncio.timeout(seconds):
            await signals.get()
    except TimeoutError:
        return False
    return True
