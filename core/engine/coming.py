"""Ranks on their way to being ready: each comes to rank 0, and is heard from then on.

They load at their own pace, for as long as it takes. A process that is stopped says nothing, which
one that loads does: then all are lost, on every rank, with the reason.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from tensorfold.core.backend_api import Place
from tensorfold.core.engine.link import BEAT_SECONDS, Frames, Watch
from tensorfold.core.engine.records import Unreadable, decode, encode
from tensorfold.core.errors import NotAllReady, RankGone, StartError

Made = TypeVar("Made")

# The beat needs Python's lock now and then. What reads weights, compiles, waits for a device or
# for other ranks lets go of it, and what a library does while it holds it takes a few seconds: the
# longest silence that lets all ranks end within 10 s of a stop is the one least often mistaken.
SILENT_SECONDS = 8.0
# For the other ways in which a rank's end is told, and with it why.
GONE_SECONDS = 3.0
# For a rank's end to be heard of, of which an exchange failed.
HEARD_SECONDS = 1.0
# For a rank that has come to say which one it is, or to be let in.
GREET_SECONDS = 20.0
# Between two looks whether somebody is where ranks meet, and for one of them.
LOOK_SECONDS, TRY_SECONDS = 0.2, 5.0
TOKEN_BYTES = 32


class Coming:
    """A rank's links to those that it hears, until all ranks are ready: rank 0's to all others, or
    another's to rank 0.

    A thread beats and hears. `lost` is told at most once, on that thread, which rank is gone, by a
    rank that sees it or is told so; unless `hand_over` was called before. `word` is no other
    start's.
    """

    def __init__(self, lost: Callable[[str], None], word: bytes) -> None:
        self.lost, self.word = lost, word
        self.ends: dict[int, Frames] = {}
        # When a rank was seen to have ended.
        self.gone: dict[int, float] = {}
        # What rank 0 said to ranks that are ready, of which this one was the last to know.
        self.early: list[dict[str, Any]] = []
        self.why = ""
        self.over = False
        self.gate = threading.Lock()
        self.selector = selectors.DefaultSelector()
        self.thread = threading.Thread(target=self.listen, name="coming", daemon=True)
        self.thread.start()

    def add(self, rank: int, end: Frames) -> None:
        with self.gate:
            if self.over:
                raise RankGone(self.why)
            self.ends[rank] = end
            self.selector.register(end.sock, selectors.EVENT_READ, rank)

    def hand_over(self) -> None:
        """Leave the links to whoever hears them from now on, after what is `early`. Raises
        `RankGone` where a rank is lost."""
        with self.gate:
            self.over = True
            if self.why:
                raise RankGone(self.why)

    def give_up(self, words: str) -> None:
        """Tell those who have come why nothing comes of it; nobody is heard any more."""
        with self.gate:
            self.over = True
            self.tell(words)
            for end in self.ends.values():
                end.close()

    def blamed(self, error: RankGone) -> RankGone | NotAllReady:
        """What is raised of an exchange that failed: before all are ready, who has ended first,
        where it is heard of in time."""
        last = time.monotonic() + HEARD_SECONDS
        while time.monotonic() < last:
            with self.gate:
                if self.over and not self.why:
                    return error
                if self.gone and not self.why:
                    # The others fail of it too, and would take it for this rank's end.
                    self.over, self.why = True, ended(min(self.gone, key=self.gone.__getitem__))
                    self.tell(self.why)
                if self.why:
                    return NotAllReady(self.why)
            time.sleep(LOOK_SECONDS / 10)
        return error

    def tell(self, words: str) -> None:
        for end in self.ends.values():
            # Whoever is gone or takes nothing is not waited for.
            with suppress(OSError):
                end.send({"lost": words})

    def listen(self) -> None:
        watch, beaten = Watch(SILENT_SECONDS), 0.0
        with self.selector:
            while True:
                found = self.selector.select(BEAT_SECONDS / 2)
                with self.gate:
                    if self.over:
                        return
                    for key, _ in found:
                        self.hear(key.data)
                    now = time.monotonic()
                    if now - beaten > BEAT_SECONDS:
                        beaten = now
                        self.beat()
                    self.look(watch, now)
                    if self.why:
                        self.over = True
                        self.tell(self.why)
                        break
        self.lost(self.why)

    def beat(self) -> None:
        for end in self.ends.values():
            # That one is gone is heard.
            with suppress(OSError):
                end.beat()

    def hear(self, rank: int) -> None:
        try:
            tables = self.ends[rank].receive()
        except (EOFError, OSError):
            self.gone[rank] = time.monotonic()
            self.selector.unregister(self.ends[rank].sock)
            return
        except Unreadable as error:
            self.why = f"rank {rank} said what cannot be read: {error}"
            return
        for table in tables:
            if "lost" in table:
                self.why = str(table["lost"])
            elif "beat" not in table:
                self.early.append(table)

    def look(self, watch: Watch, now: float) -> None:
        for rank, since in self.gone.items():
            if now - since > GONE_SECONDS:
                self.why = ended(rank)
        heard = {rank: end for rank, end in self.ends.items() if rank not in self.gone}
        silent = watch.silent(*heard.values())
        for rank, end in heard.items():
            if end in silent:
                self.why = (
                    f"rank {rank} has been silent for {SILENT_SECONDS:g} s before all were ready"
                )


def ended(rank: int) -> str:
    return f"rank {rank} ended before all were ready"


def await_listener(place: Place) -> None:
    """Wait until somebody answers where ranks meet. Raises `StartError` where nobody does in time.

    The library that ranks meet over would wait too, and fail with pages of its own words.
    """
    last = time.monotonic() + place.seconds
    while True:
        left = last - time.monotonic()
        try:
            address = place.host, place.port
            socket.create_connection(address, max(0.1, min(left, TRY_SECONDS))).close()
        except OSError as error:
            if left <= 0:
                raise missed([0], place, f": {error.strerror or error}") from None
        else:
            return
        time.sleep(LOOK_SECONDS)


def in_time(work: Callable[[], Made], place: Place, last: float) -> Made:
    """What a library's call gives that would wait without end for who listens and says nothing.
    Raises `StartError` where it does."""
    found = Future[Made]()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="meeting", daemon=True).start()
    try:
        return found.result(max(0.1, last - time.monotonic()))
    except TimeoutError:
        raise missed([0], place, ": who listens there says nothing") from None


def missed(ranks: list[int], place: Place, why: str = "") -> StartError:
    """Of ranks that did not come in time."""
    return StartError(
        f"{named(ranks)} did not come to {place.host} port {place.port} in {place.seconds:g} s{why}"
    )


def lead(place: Place, say: Callable[[bytes], None]) -> Coming:
    """Rank 0's links to all others, who are `say`d where it is and what this start is called.

    Raises `StartError` where one does not come in time.
    """
    word = secrets.token_bytes(TOKEN_BYTES)
    coming = Coming(place.lost, word)
    missing = list(range(1, place.share.ranks))
    last = time.monotonic() + place.seconds
    with socket.create_server((place.host, 0)) as server:
        say(encode((server.getsockname()[1], word, place.share.ranks)))
        while missing:
            server.settimeout(max(0.0, last - time.monotonic()))
            try:
                sock, _ = server.accept()
            except (TimeoutError, BlockingIOError):
                error = missed(missing, place)
                coming.give_up(str(error))
                raise error from None
            rank = greeted(sock, word)
            if rank not in missing:
                if rank is not None:
                    with suppress(OSError):
                        Frames(sock).send({"lost": f"rank {rank} has come before"})
                sock.close()
                continue
            missing.remove(rank)
            coming.add(rank, Frames(prompt(sock)))
    return coming


def named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def greeted(sock: socket.socket, word: bytes) -> int | None:
    """The rank that a stranger turns out to be, or none."""
    sock.settimeout(GREET_SECONDS)
    try:
        said = sock.recv(TOKEN_BYTES + 1, socket.MSG_WAITALL)
    except OSError:
        return None
    known = secrets.compare_digest(said[:TOKEN_BYTES], word)
    return said[TOKEN_BYTES] if known and len(said) == TOKEN_BYTES + 1 else None


def reach(place: Place, told: Callable[[], bytes], last: float) -> Coming:
    """Another rank's link to rank 0, which has said where it is: `told` gives its last word.

    Raises `StartError` where it is not there by then, or is one of another number of ranks.
    """
    while True:
        port, word, ranks = decode(told())
        if ranks != place.share.ranks:
            raise StartError(
                f"rank {place.share.rank} is one of {place.share.ranks}, and rank 0 at "
                f"{place.host} port {place.port} is one of {ranks}"
            )
        try:
            sock = socket.create_connection((place.host, port), GREET_SECONDS)
        except OSError as error:
            # What is told may be of a start before this one, as under a launcher that starts anew.
            if time.monotonic() > last:
                raise missed([0], place, f": port {port}: {error.strerror or error}") from None
            time.sleep(LOOK_SECONDS)
            continue
        # A rank 0 that has gone meanwhile is heard of.
        with suppress(OSError):
            sock.sendall(word + bytes([place.share.rank]))
        coming = Coming(place.lost, word)
        coming.add(0, Frames(prompt(sock)))
        return coming


def prompt(sock: socket.socket) -> socket.socket:
    """Calls are small, and none waits for the next."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
