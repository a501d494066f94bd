"""Sockets between rank 0 and the others: calls out, outcomes back, and a beat both ways.

A frame is four bytes of length and a record table. Whoever is silent too long, or whose socket
closes, is lost, and with it the engine: on every rank, with the reason.
"""

from __future__ import annotations

import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tensorfold.core.engine.records import Unreadable, decode, encode

LENGTH_BYTES = 4
MOST = 256 << 20
BEAT_SECONDS = 0.5
SILENT_SECONDS = 3.5
# A watcher that was itself away so long cannot blame the others for their silence.
AWAY_SECONDS = 2.0
READ_BYTES = 1 << 16
# Before a thread that hears beside its work hears on, where more may come.
MORE_SECONDS = 0.005
# For the reason to arrive by another way than what failed of it.
REASON_SECONDS = 1.0
# For all ranks to tell that a call did nothing, once one of them has.
ALIKE_SECONDS = 2.0
# For ranks to make the calls that they have, once no more come.
LAST_SECONDS = 4.0

OnLost = Callable[[str], None]


def framed(table: Mapping[str, Any]) -> bytes:
    raw = encode(dict(table))
    assert len(raw) <= MOST, len(raw)
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


BEAT = framed({"beat": 1})


class Frames:
    """One end of a socket: frames out from any thread, frames in on one."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(SILENT_SECONDS)
        self.sock = sock
        self.gate = threading.Lock()
        self.room = select.poll()
        self.room.register(sock, select.POLLOUT)
        self.pending = bytearray()
        self.heard = time.monotonic()

    def send(self, table: Mapping[str, Any]) -> None:
        raw = framed(table)
        with self.gate:
            self.sock.sendall(raw)

    def beat(self) -> None:
        """Say that this end is there, unless it is saying more than the other takes by now: whoever
        beats goes on hearing, which the other may wait for."""
        if self.gate.acquire(blocking=False):
            try:
                if self.room.poll(0):
                    self.sock.sendall(BEAT)
            finally:
                self.gate.release()

    def receive(self) -> list[dict[str, Any]]:
        """The frames that have come whole; raises `EOFError` once the other end has closed."""
        read = self.sock.recv(READ_BYTES)
        if not read:
            raise EOFError
        self.heard = time.monotonic()
        self.pending += read
        found = []
        while len(self.pending) >= LENGTH_BYTES:
            length = int.from_bytes(self.pending[:LENGTH_BYTES], "big")
            if length > MOST:
                raise Unreadable(f"a frame of {length} bytes")
            end = LENGTH_BYTES + length
            if len(self.pending) < end:
                break
            table = decode(bytes(self.pending[LENGTH_BYTES:end]))
            if not isinstance(table, dict):
                raise Unreadable("a frame that is no table")
            found.append(table)
            del self.pending[:end]
        return found

    def take(self, who: str, over: OnLost) -> list[dict[str, Any]] | None:
        """As `receive`; none where the other end, who that is, says no more: `over` is told why."""
        try:
            return self.receive()
        except (EOFError, OSError):
            over(f"{who} has ended")
        except Unreadable as error:
            over(f"{who} said what cannot be read: {error}")
        return None

    def close(self) -> None:
        self.sock.close()


class Fault(NamedTuple):
    """A call that did nothing on a rank, why, and until when all have to tell that of theirs."""

    rank: int
    why: str
    until: float

    def words(self) -> str:
        return f"rank {self.rank}: {self.why}: not told by every rank"


class Watch:
    """Tells silence, of more than that many seconds, from a watcher's own absence."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.looked = time.monotonic()

    def silent(self, *ends: Frames) -> list[Frames]:
        now = time.monotonic()
        if now - self.looked > AWAY_SECONDS:
            for end in ends:
                end.heard = now
        self.looked = now
        return [end for end in ends if now - end.heard > self.seconds]


class Leader:
    """Rank 0's ends. `call` sends to all ranks; a thread hears what they say.

    `lost` is why the engine is lost, once it is; those who `watch` are told once, on that thread.
    """

    def __init__(self, ends: Mapping[int, Frames]) -> None:
        self.ends = dict(ends)
        self.step = 0
        self.lost: str | None = None
        self.gate = threading.Lock()
        self.outcomes: dict[int, dict[int, str]] = {}
        # Of steps that not every rank has told; and what tells that it has, or of a loss.
        self.faults: dict[int, Fault] = {}
        self.told = threading.Condition(self.gate)
        self.watchers: list[OnLost] = []
        self.over = threading.Event()
        self.last = 0.0
        self.thread = threading.Thread(target=self.listen, name="ranks", daemon=True)
        self.thread.start()

    def watch(self, watcher: OnLost) -> None:
        with self.gate:
            self.watchers.append(watcher)
            lost = self.lost
        if lost is not None:
            watcher(lost)

    def call(self, name: str, *args: Any) -> int:
        """Send a call; its step. A rank that takes nothing is lost."""
        self.step += 1
        self.tell({"step": self.step, "call": name, "args": args})
        return self.step

    def decide(self, step: int, ahead: bool) -> None:
        """Say whether the round after a step's is launched now, where the ranks ask."""
        self.tell({"step": step, "ahead": ahead})

    def tell(self, table: Mapping[str, Any]) -> None:
        self.each(lambda end: end.send(table))

    def each(self, say: Callable[[Frames], None]) -> None:
        for rank, end in self.ends.items():
            try:
                say(end)
            except ConnectionError:
                # Who hears is told so too, or why.
                if self.thread is not threading.current_thread():
                    self.thread.join(REASON_SECONDS)
                    self.lose(f"rank {rank} has ended")
            except OSError as error:
                self.lose(f"rank {rank} takes no more calls: {error or type(error).__name__}")

    def settle(self, step: int, outcome: str, rank: int = 0, fault: str = "") -> None:
        """Note a rank's outcome of a step; unequal ones lose the engine. So does a `fault`, words
        of a call that did nothing, which not every rank tells in time: others may wait in it."""
        with self.gate:
            told = self.outcomes.setdefault(step, {})
            told[rank] = outcome
            if fault:
                until = time.monotonic() + ALIKE_SECONDS
                self.faults.setdefault(step, Fault(rank, fault, until))
            known = self.faults.get(step)
            differing = [other for other in told if told[other] != told[min(told)]]
            if len(told) == 1 + len(self.ends):
                del self.outcomes[step]
                if known is not None and not differing:
                    del self.faults[step]
                    self.told.notify_all()
        if differing and known is not None:
            self.lose(known.words())
        elif differing:
            self.lose(f"rank {differing[0]} gave another outcome of step {step}: ranks diverged")

    def agree(self, step: int) -> None:
        """Wait until every rank has told that a step did nothing, or the engine is lost of it."""
        with self.told:
            self.told.wait_for(
                lambda: step not in self.faults or self.lost is not None, ALIKE_SECONDS
            )
            fault = self.faults.get(step)
        if fault is not None:
            self.lose(fault.words())

    def late(self, now: float) -> list[Fault]:
        with self.gate:
            return [fault for fault in self.faults.values() if now > fault.until]

    def lose(self, words: str) -> None:
        with self.gate:
            if self.lost is not None or self.over.is_set():
                return
            self.lost, watchers = words, list(self.watchers)
            self.told.notify_all()
        for end in self.ends.values():
            try:
                end.send({"lost": words})
            except OSError:
                # It is gone, or will see this end close.
                continue
        for watcher in watchers:
            watcher(words)

    def listen(self) -> None:
        watch, beaten = Watch(SILENT_SECONDS), 0.0
        with selectors.DefaultSelector() as selector:
            for rank, end in self.ends.items():
                selector.register(end.sock, selectors.EVENT_READ, (rank, end))
            while selector.get_map() and self.lost is None:
                for key, _ in selector.select(BEAT_SECONDS / 2):
                    if not self.hear(*key.data):
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                if self.over.is_set():
                    # The others make the calls they have, and close their ends.
                    if now > self.last:
                        return
                    continue
                if now - beaten > BEAT_SECONDS:
                    beaten = now
                    self.each(Frames.beat)
                    for fault in self.late(now):
                        self.lose(fault.words())
                for end in watch.silent(*self.ends.values()):
                    (rank,) = [rank for rank, own in self.ends.items() if own is end]
                    self.lose(f"rank {rank} has been silent for {SILENT_SECONDS:g} s")

    def hear(self, rank: int, end: Frames) -> bool:
        """Take what a rank says; false when it will say no more."""
        tables = end.take(f"rank {rank}", self.lose)
        for table in tables or ():
            if "lost" in table:
                self.lose(f"rank {rank}: {table['lost']}")
            elif "outcome" in table:
                self.settle(table["step"], table["outcome"], rank, table.get("fault", ""))
        return tables is not None

    def end(self) -> None:
        """Let the other ranks go, once they have made the calls they have: none follows."""
        self.last = time.monotonic() + LAST_SECONDS
        self.over.set()
        if self.lost is None:
            self.tell({"end": 1})
        if self.thread is not threading.current_thread():
            self.thread.join()
        for end in self.ends.values():
            end.close()


class Follower:
    """Another rank's end. `next` hears rank 0 itself, and gives its calls in order; a thread beats,
    and hears rank 0 while nobody asks for its calls. What it said before is `early`.

    `on_lost` is called at most once, on that thread, with the reason.
    """

    def __init__(
        self, end: Frames, on_lost: OnLost, early: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.frames = end
        self.on_lost = on_lost
        # One thread reads at a time: a call that went from one to another would be late.
        self.reading = threading.Lock()
        self.gate = threading.Lock()
        self.poll = select.poll()
        self.poll.register(end.sock, select.POLLIN)
        self.calls: deque[Mapping[str, Any]] = deque()
        self.over = threading.Event()
        self.reason: str | None = None
        self.take(early)
        self.thread = threading.Thread(target=self.watch, name="rank 0", daemon=True)
        self.thread.start()

    def next(self) -> Mapping[str, Any] | None:
        """The next call or decision, or none when there will be no more."""
        with self.reading:
            while not self.calls and not self.over.is_set():
                self.hear(BEAT_SECONDS / 2)
            return self.calls.popleft() if self.calls else None

    def report(self, step: int, outcome: str, fault: str = "") -> None:
        """Tell what came of a call, and of one that did nothing why."""
        self.tell({"step": step, "outcome": outcome} | ({"fault": fault} if fault else {}))

    def lose(self, words: str) -> None:
        """Tell rank 0 what this rank is lost of."""
        self.tell({"lost": words})

    def tell(self, table: Mapping[str, Any]) -> None:
        # That rank 0 is gone is heard, and is the reason then.
        with suppress(OSError):
            self.frames.send(table)

    def close(self) -> None:
        """Nothing more is said."""
        self.thread.join()
        self.frames.close()

    def hear(self, seconds: float) -> bool:
        """Take what has come, or comes in that time, if anything; for whoever is `reading`."""
        if not self.poll.poll(1000 * seconds):
            return False
        heard = self.frames.take("rank 0", self.end)
        self.take(heard or ())
        return heard is not None

    def take(self, tables: Sequence[Mapping[str, Any]]) -> None:
        for table in tables:
            if "end" in table:
                self.end(None)
            elif "lost" in table:
                self.end(str(table["lost"]))
            elif "step" in table:
                self.calls.append(table)

    def end(self, reason: str | None) -> None:
        """No more calls come, for that reason, or because rank 0 said so."""
        with self.gate:
            if not self.over.is_set():
                self.reason = reason
                self.over.set()

    def watch(self) -> None:
        watch, beaten, more = Watch(SILENT_SECONDS), 0.0, False
        # Rank 0 may wait for what it says to be heard.
        while not self.over.wait(MORE_SECONDS if more else BEAT_SECONDS / 2):
            now = time.monotonic()
            if now - beaten > BEAT_SECONDS:
                beaten = now
                # Whether it is gone is heard.
                with suppress(OSError):
                    self.frames.beat()
            more = False
            if self.reading.acquire(blocking=False):
                try:
                    more = self.hear(0)
                finally:
                    self.reading.release()
            if watch.silent(self.frames):
                self.end(f"rank 0 has been silent for {SILENT_SECONDS:g} s")
        if self.reason is not None:
            self.on_lost(self.reason)
