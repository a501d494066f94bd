"""`tensorfold serve`: settings, backend, model, engine and text, then the server until it ends.

What can be refused cheaply is refused before anything slow is loaded.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from tensorfold.core.backend_api import Backend, EngineOrder, OfDevices, Place
from tensorfold.core.checkpoint import read_config
from tensorfold.core.draft_settings import drafter_names
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import ChatFormat, Family
from tensorfold.core.lane_host.door import check_flights
from tensorfold.core.settings import Settings, add_flags, read
from tensorfold.core.share import Share
from tensorfold.plugins.choose import choose_backend, choose_drafters
from tensorfold.plugins.manager import discover
from tensorfold.tools.arguments import Parser
from tensorfold.tools.launch import (
    Agent,
    end_now,
    given_place,
    kept,
    launched,
    leave,
    settings_at,
    tether,
    told,
)
from tensorfold.tools.models import Served, find_model
from tensorfold.tools.start_times import StartTimes
from tensorfold.tools.status_line import StatusLine, load_bar

if TYPE_CHECKING:
    from tensorfold.core.drafter_api import HostDrafter
    from tensorfold.core.engine_api import Engine, Info
    from tensorfold.core.text import Text

LOG = logging.getLogger("tensorfold.serve")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.:\[\]-]+")


def main(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="tensorfold serve",
        description="Serve a model over HTTP. Every flag has an environment variable, named in [].",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "model",
        nargs="?",
        default="",
        metavar="DIR|NAME",
        help="a checkpoint's folder or a bundled model's name; the bundled model when absent",
    )
    add_flags(parser)
    flags = vars(parser.parse_args(arguments))
    asked = flags.pop("model")
    with ending_at_once() as stopping:
        return serve(asked, flags, os.environ, stopping)


class Stopping:
    """What a signal does during the load: `others` is called first."""

    def __init__(self) -> None:
        self.others: Callable[[], None] = lambda: None


def serve(
    asked: str, flags: Mapping[str, Any], environ: Mapping[str, str], stopping: Stopping
) -> int:
    place = given_place(environ)
    agent = Agent(environ)
    settings = settings_at(read(flags, environ), place)
    if place is not None and place.share.rank:
        tether(environ)
        with told("tensorfold", environ, leave):
            return serve_rank(asked, settings, place)
    check_port(settings.host, settings.port)
    check_origin(settings.cors)
    check_folders(settings)
    installed = discover()
    backend = choose_backend(installed, settings.backend)
    model = find_model(installed, backend, asked)
    drafters = choose_drafters(installed, drafter_names(settings))
    served = partial(serve_model, settings, backend, model, drafters, agent)
    if settings.ranks == 1:
        return served(place)
    if place is not None:
        with told("tensorfold", environ, leave):
            return served(place, left=leave)
    check_ranks(settings, backend, model)
    with (
        launched(settings.ranks) as launch,
        told("tensorfold", environ, launch.left, launch.why),
    ):
        stopping.others = launch.kill
        return served(launch.place, launch.met.set, launch.left)


def check_ranks(settings: Settings, backend: Backend, model: Served) -> None:
    """Refuse more ranks than there are devices, and a model that cannot be cut, before the other
    ranks are started."""
    if isinstance(backend, OfDevices) and settings.ranks > backend.devices():
        raise StartError(
            f"--ranks is {settings.ranks}, and backend {backend.name!r} has "
            f"{backend.devices()} GPU{'' if backend.devices() == 1 else 's'} here, one a rank"
        )
    if model.family is not None:
        raw = read_config(model.folder)
        config = model.family.config(raw, settings.numerics, settings.expert_cut)
        model.family.shared(config, Share(ranks=settings.ranks))


def serve_model(
    settings: Settings,
    backend: Backend,
    model: Served,
    drafters: Sequence[HostDrafter],
    agent: Agent,
    place: Place | None,
    met: Callable[[], None] = lambda: None,
    left: Callable[[int], int] = kept,
) -> int:
    """Serve until the end; `met` is told once all ranks are there, and `left` ends this process."""
    engine, text, took = load(settings, backend, model, place, agent)
    met()
    for words in skipped(engine.info):
        print(f"{model.name}: {words}", file=sys.stderr)

    from tensorfold.core.server.app import run

    name = settings.name or model.name
    with StatusLine(sys.stderr, settings.log) as line:
        if took:
            LOG.info(took)
        for words in held(engine.info):
            LOG.info(words)
        code = run(
            engine=engine,
            text=text,
            settings=settings,
            model=name,
            aliases=() if name == model.name else (model.name,),
            drafters=drafters,
            ready=line.ready,
            status=line.show,
        )
    return left(code)


def serve_rank(asked: str, settings: Settings, place: Place) -> int:
    """Make rank 0's calls until it ends; a loss ends the process at once, wherever it is."""
    from tensorfold.core.engine.ranks import follow, following

    installed = discover()
    backend = choose_backend(installed, settings.backend)
    model = find_model(installed, backend, asked)
    order = EngineOrder(settings=settings, folder=model.folder, family=model.family, place=place)

    def end_lost(words: str) -> None:
        os.write(2, f"tensorfold: rank {place.share.rank} ends: {words}\n".encode())
        os._exit(1)

    engine = backend.engine(order)
    link = following(engine, end_lost)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Rank 0 is told too, and decides.
        signal.signal(number, signal.SIG_IGN)
    try:
        follow(engine, link)
    except Exception as error:
        end_lost(f"{type(error).__name__}: {error}")
    return leave(0)


def load(
    settings: Settings, backend: Backend, model: Served, place: Place | None, agent: Agent
) -> tuple[Engine, Text, str]:
    """Open the engine and read the model's text side, the quicker and likelier to fail first; also
    how long the parts of it took, in words. An engine of several ranks is lost when `agent` ends.
    """
    from tensorfold.core.text import load_text

    with load_bar(sys.stderr, f"Loading {model.name}") as bar:
        times = StartTimes(bar)
        order = EngineOrder(
            settings=settings,
            folder=model.folder,
            family=model.family,
            progress=times,
            place=place,
        )
        if model.family is None:
            if place is not None:
                raise StartError(f"backend {backend.name!r} runs on one rank")
            engine = backend.engine(order)
            check_flights(engine)
            chat = ChatFormat(template="")
            return engine, load_text(model.folder, chat, engine.info.vocab_size, ()), ""
        family = model.family
        config = family.config(read_config(model.folder))
        vocab_size, end_ids = family.vocab_size(config), family.end_ids(config)
        text = load_text(model.folder, family.chat_in(model.folder), vocab_size, end_ids)
        engine = backend.engine(order)
        if place is not None:
            from tensorfold.core.engine.index_split import IndexSplit
            from tensorfold.core.engine.ranks import leading

            position = split_position(settings, family)
            split = IndexSplit(position=position, shares=settings.index_shares)
            engine = leading(engine, split)
            agent.ended = engine.link.lose
    times.close()
    return engine, text, times.words()


def skipped(info: Info) -> list[str]:
    """What of the checkpoint is not served, a line a part."""
    return [
        f"{found['tensors']:,} tensors of {found['bytes']:,} bytes passed over: {part}, not served"
        for part, found in info.skipped.items()
    ]


def held(info: Info) -> list[str]:
    """What each rank's memory holds and has left, a line a rank."""
    return [
        f"rank {rank}: {own.weights:,} bytes of weights, {own.state:,} of state, {own.free:,} free"
        for rank, own in enumerate(info.rank_bytes)
    ]


def split_position(settings: Settings, family: Family) -> int:
    """From where on ranks split a family's index; 0 is nowhere."""
    return int(getattr(settings, family.index_split)) if family.index_split else 0


def check_port(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, before the slow load."""
    if not host:
        raise StartError("--host is empty: give an address, or 0.0.0.0 for every one of this host")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise StartError(f"cannot listen on {host} port {port}: {why}") from None


def check_origin(origin: str) -> None:
    """Refuse what no browser sends as its page's origin: every call from a page would fail."""
    if origin not in ("", "*") and not ORIGIN.fullmatch(origin):
        raise StartError(
            f"--cors is {origin!r}, and an origin is a scheme and a host as in https://a.example, "
            "or * for any"
        )


def check_folders(settings: Settings) -> None:
    """Refuse a trace file or a cache folder that cannot be written."""
    if settings.trace:
        trace = Path(settings.trace)
        attempt("--trace", trace, lambda: trace.open("a").close())
    if settings.cache_dir:
        folder = Path(settings.cache_dir)
        attempt("--cache-dir", folder, lambda: write_in(folder))


def attempt(source: str, path: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise StartError(f"{source} {path} cannot be written: {error.strerror}") from None


def write_in(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".tensorfold-{os.getpid()}"
    probe.touch()
    probe.unlink()


@contextmanager
def ending_at_once() -> Iterator[Stopping]:
    """Let SIGTERM and Ctrl-C end the process during the load; the server sets its own handlers.

    A thread hears of them: no handler runs while the main thread waits inside a library.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, left_to_the_thread)
    told, telling = socket.socketpair()
    telling.setblocking(False)
    woken = signal.set_wakeup_fd(telling.fileno())
    stopping = Stopping()
    given = told, stopping
    thread = threading.Thread(target=end_when_told, args=given, name="signals", daemon=True)
    thread.start()
    try:
        yield stopping
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        telling.close()
        thread.join()
        told.close()


def end_when_told(told: socket.socket, stopping: Stopping) -> None:
    """Each byte is the number of a signal that this process handles."""
    while said := told.recv(1):
        if said[0] in (signal.SIGTERM, signal.SIGINT):
            stopping.others()
            stop(said[0])


def left_to_the_thread(number: int, frame: FrameType | None) -> None:
    return None


def stop(number: int) -> NoReturn:
    """End without unwinding: a load may be deep in a library, and nothing is owed to anyone."""
    name = signal.Signals(number).name
    end_now(
        f"stopped by {name} before it was ready to serve", 0 if number == signal.SIGTERM else 130
    )
