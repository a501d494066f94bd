"""The processes of an engine of several ranks: started on this host, or found by their launcher.

Rank 0 is the process that a person starts; it starts the others with its own command and holds a
pipe to each, whose end tells them that it is gone, however it went. Under `torchrun`, or whatever
sets the same variables, every process is one rank, and none outlives the `torchrun` of its host.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import NoReturn

from tensorfold.core.backend_api import Place
from tensorfold.core.errors import NotAllReady, StartError
from tensorfold.core.settings import Settings
from tensorfold.core.share import Share

LOOPBACK = "127.0.0.1"
RANK, RANKS, HOST, PORT = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
# A rank's number among those of its own host; where nobody sets it, there is one host.
LOCAL = "LOCAL_RANK"
VARIABLES = (RANK, RANKS, HOST, PORT)
# Set by torchrun where its own process answers at that address.
SERVED = "TORCHELASTIC_USE_AGENT_STORE"
# Set for the ranks that rank 0 started: their stdin is the pipe.
TETHERED = "TENSORFOLD_TETHERED"
# Set by torchrun, whose process is the parent of the ranks that it starts.
RUN = "TORCHELASTIC_RUN_ID"
LOOK_SECONDS = 0.2
# Takes a half-drawn bar away and shows the cursor again.
CLEAN_LINE = b"\r\x1b[K\x1b[?25h"
# For ranks to end by themselves, or for rank 0 to say what they were refused.
LAST_SECONDS = 2.0
# For rank 0 to say, and end, what a rank that it started was refused too.
SAID_SECONDS = 1.0
# For a rank that is stopped before it has come to the others to go on.
STOPPED_SECONDS = 8.0
REFUSED, FAILED = 2, 1
# To ask whether a child is stopped, and leave its end to whoever waits for that.
STOPPED = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
# From the kernel's prctl.h.
PR_SET_PDEATHSIG = 1


def given_place(environ: Mapping[str, str]) -> Place | None:
    """The place that a launcher gave this process, or none. Raises `StartError`."""
    told = [name for name in (RANK, RANKS) if environ.get(name)]
    if not told or (environ.get(RANK) or "0", environ.get(RANKS)) == ("0", "1"):
        return None
    for name in VARIABLES:
        if not environ.get(name):
            raise StartError(
                f"{told[0]} is {environ[told[0]]}, and {name} is not set: one of several ranks has "
                f"{', '.join(VARIABLES)}"
            )
    rank, ranks, port = (number(environ, name) for name in (RANK, RANKS, PORT))
    if not 0 <= rank < ranks:
        raise StartError(f"{RANK} is {rank}, and {RANKS} is {ranks}")
    if not 0 < port < 1 << 16:
        raise StartError(f"{PORT} is {port}, and a port is 1 to 65535")
    local = number(environ, LOCAL) if LOCAL in environ else rank
    if not 0 <= local <= rank:
        raise StartError(f"{LOCAL} is {local}, and {RANK} is {rank}")
    return Place(
        share=Share(rank=rank, ranks=ranks),
        host=environ[HOST],
        port=port,
        local=local,
        served=environ.get(SERVED) == "True",
        lost=partial(end_lost, environ, rank),
    )


def number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise StartError(f"{name} must be a whole number, not {environ[name]!r}") from None


def settings_at(settings: Settings, place: Place | None) -> Settings:
    """The settings with the ranks that a launcher gave. Raises `StartError` where they differ."""
    if place is None:
        return settings
    ranks = place.share.ranks
    if settings.ranks not in (1, ranks):
        raise StartError(f"--ranks is {settings.ranks}, and {RANKS} is {ranks}")
    return replace(settings, ranks=ranks)


class Launch:
    """Rank 0's `place`, and the other ranks that were started for it."""

    def __init__(self, ranks: int) -> None:
        with socket.create_server((LOOPBACK, 0)) as server:
            port = server.getsockname()[1]
            self.children = [start(rank, ranks, port) for rank in range(1, ranks)]
            # The store that ranks meet at takes the socket over.
            listener = server.detach()
        self.place = Place(
            share=Share(ranks=ranks), host=LOOPBACK, port=port, listener=listener, lost=self.lost
        )
        self.met = threading.Event()
        # How often one after the other each rank was seen stopped.
        self.looks: dict[int, int] = {}
        self.thread = threading.Thread(target=self.watch, name="launch", daemon=True)
        self.thread.start()

    def watch(self) -> None:
        """Until all have met: a rank that ends ends the start, whatever rank 0 waits in."""
        while not self.met.wait(LOOK_SECONDS):
            # What all ranks were refused, rank 0 says itself.
            if (words := self.ended()) and not self.met.wait(LAST_SECONDS):
                self.lost(words)
            if words := self.stopped():
                self.lost(words)

    def lost(self, words: str) -> NoReturn:
        """End a start that cannot succeed, and all of its ranks, from any thread."""
        self.kill()
        end_now(words, REFUSED)

    def ended(self) -> str:
        """Which rank has ended before all were ready, and how, or nothing; of several one that was
        not refused."""
        codes = {rank: child.poll() for rank, child in enumerate(self.children, 1)}
        ended = {rank: code for rank, code in codes.items() if code is not None}
        if not ended:
            return ""
        rank = min(ended, key=lambda rank: (ended[rank] == REFUSED, rank))
        return f"rank {rank} ended before it was ready, with status {ended[rank]}"

    def stopped(self) -> str:
        """Which rank is stopped, and how long, or nothing: one that has not come is not heard."""
        if sys.platform != "linux":
            return ""
        for rank, child in enumerate(self.children, 1):
            held = child.returncode is None and os.waitid(os.P_PID, child.pid, STOPPED)
            # Looks are counted, since this process may be stopped and go on with the others.
            self.looks[rank] = self.looks.get(rank, 0) + 1 if held else 0
            if self.looks[rank] * LOOK_SECONDS > STOPPED_SECONDS:
                return f"rank {rank} has been stopped for {STOPPED_SECONDS:g} s before it was ready"
        return ""

    def why(self, error: StartError) -> str:
        """What rank 0 was refused, in words: of a rank that has ended, which one and how."""
        if not isinstance(error, NotAllReady):
            return str(error)
        last = time.monotonic() + LAST_SECONDS
        while not (words := self.ended()) and time.monotonic() < last:
            time.sleep(LOOK_SECONDS / 10)
        return words or str(error)

    def kill(self) -> None:
        """End the ranks at once, whatever they are in, for a process that ends next itself."""
        for child in self.children:
            child.kill()

    def end(self, patience: float = LAST_SECONDS) -> None:
        """Let the ranks end, for a time; then none is left."""
        self.met.set()
        self.thread.join()
        last = time.monotonic() + patience
        for child in self.children:
            try:
                child.wait(max(0.0, last - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            assert child.stdin is not None
            child.stdin.close()

    def left(self, code: int) -> NoReturn:
        """Let the ranks end, or end them after a failure, and leave: one that stalls would not end
        by itself."""
        self.end(0.0 if code else LAST_SECONDS)
        leave(code)


@contextmanager
def launched(ranks: int) -> Iterator[Launch]:
    """The other ranks of this host; none of them outlives this process."""
    launch = Launch(ranks)
    try:
        yield launch
    finally:
        launch.end()


def start(rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
    own = {RANK: str(rank), RANKS: str(ranks), HOST: LOOPBACK, PORT: str(port), TETHERED: "1"}
    own[LOCAL] = str(rank)
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **own},
    )


class Agent:
    """Under `torchrun`, its process on this host: `ended` is called once that is gone."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.ended: Callable[[str], None] = end_at_once
        self.pid = os.getppid()
        if RUN in environ:
            wake_with_parent()
            threading.Thread(target=self.watch, name="agent", daemon=True).start()

    def watch(self) -> None:
        while os.getppid() == self.pid:
            time.sleep(LOOK_SECONDS)
        self.ended("torchrun has ended")


def leave(code: int) -> NoReturn:
    """End this process, one of several ranks that have met, with nothing unwound: what a device's
    libraries hold may wait for ranks that are gone, or for what else is let go of. Whoever has the
    engine calls it."""
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Whoever read the words may have left before.
        os._exit(code)


def kept(code: int) -> int:
    """As `leave`, of a process that is not one of several ranks."""
    return code


@contextmanager
def told(
    name: str,
    environ: Mapping[str, str],
    left: Callable[[int], NoReturn],
    why: Callable[[StartError], str] = str,
) -> Iterator[None]:
    """Of what a rank was refused or failed in, say why and leave."""
    try:
        yield
    except StartError as error:
        if TETHERED in environ:
            time.sleep(SAID_SECONDS)
        with suppress(OSError):
            print(f"{name}: {why(error)}", file=sys.stderr)
        left(REFUSED)
    except Exception:
        with suppress(OSError):
            traceback.print_exc()
        left(FAILED)


def end_lost(environ: Mapping[str, str], rank: int, words: str) -> NoReturn:
    """End a rank whose start cannot succeed, from any thread."""
    if TETHERED in environ:
        time.sleep(SAID_SECONDS)
    end_now(f"rank {rank} ends: {words}", REFUSED)


def end_at_once(words: str) -> None:
    end_now(words, FAILED)


def end_now(words: str, code: int) -> NoReturn:
    """End from any thread, whatever the others are in."""
    if os.isatty(2):
        os.write(2, CLEAN_LINE)
    os.write(2, f"tensorfold: {words}\n".encode())
    os._exit(code)


def tether(environ: Mapping[str, str]) -> None:
    """Of a rank that rank 0 started: live as long as it does, and leave signals to it."""
    if TETHERED not in environ:
        return
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    wake_with_parent()
    threading.Thread(target=end_with_pipe, name="tether", daemon=True).start()


def wake_with_parent() -> None:
    """Of a process that ends once its parent has, also where that finds it stopped: it goes on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def end_with_pipe() -> None:
    os.read(0, 1)
    os._exit(1)
