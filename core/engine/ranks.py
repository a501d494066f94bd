"""One engine over several ranks: rank 0's calls go to all of them, and each makes them in order.

Rank 0's engine is what the lane host drives. The others make the same calls on their own, and tell
what came of each; an outcome that differs ends all ranks, since silent divergence is the worst that
could happen.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from tensorfold.core.engine.coming import Coming
from tensorfold.core.engine.index_split import IndexSplit
from tensorfold.core.engine.link import REASON_SECONDS, Follower, Leader, OnLost
from tensorfold.core.engine.records import digest
from tensorfold.core.engine_api import (
    Engine,
    Filled,
    Flight,
    Landed,
    Memory,
    Opened,
    Opening,
    Piece,
    Saved,
    Window,
    nobody,
)
from tensorfold.core.errors import (
    EngineFault,
    EngineLost,
    NoRoom,
    NotAllReady,
    RankGone,
    Refused,
    in_words,
)

if TYPE_CHECKING:
    from tensorfold.core.engine.group import Group

LOG = logging.getLogger("tensorfold.ranks")
Result = TypeVar("Result")

# What a call may raise that is an outcome as good as any.
OUTCOMES = (NoRoom, Refused)
# The outcome of a call that did nothing: its words may be of a rank's own device.
NOTHING = EngineFault.__name__
# For a call that waits for a lost rank to come back, once its device was told to let go.
LET_GO_SECONDS = 2.0


NEVER = IndexSplit()


@runtime_checkable
class Ranked(Protocol):
    """An engine that is one of several ranks."""

    group: Group | None


class LeadingFlight(Generic[Result]):
    """A flight of all ranks. Where a round could run ahead of its being asked for, all wait until
    rank 0 says whether it does."""

    def __init__(self, engine: LeadingEngine, step: int, flight: Flight[Result]) -> None:
        self.engine, self.step, self.flight = engine, step, flight

    def land(self, waits: Callable[[], bool] = nobody) -> Sequence[Result]:
        def held() -> bool:
            # Of a lost engine the words that decide may be those of a forward that was let go of.
            self.engine.refuse_if_lost()
            waiting = waits()
            self.engine.link.decide(self.step, not waiting)
            self.engine.refuse_if_lost()
            return waiting

        return self.engine.settled(self.step, lambda: self.flight.land(held))


class LeadingEngine:
    """Rank 0's engine, whose calls all ranks make.

    `abort` has a device end its waits for other ranks. Of a call that does not come back even so
    those who watch are told.
    """

    def __init__(
        self,
        engine: Engine,
        link: Leader,
        split: IndexSplit = NEVER,
        abort: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self.abort = abort
        self.gate = threading.Lock()
        self.inside = False
        self.watchers: list[OnLost] = []
        # Before anyone else is told: a forward that waits for a lost rank must come to its end.
        link.watch(self.let_go)
        self.split = split
        self.link = link
        self.info = engine.info

    def watch(self, watcher: OnLost, given_up: OnLost) -> None:
        """As `engine_api.Watched`."""
        self.watchers.append(given_up)
        self.link.watch(watcher)

    def lose(self, words: str) -> None:
        """As `engine_api.Watched`."""
        self.link.lose(f"rank 0: {words}")

    def let_go(self, words: str) -> None:
        """End the calls that wait for a lost rank, or give them up. Whoever calls waits for
        neither: a device may hold what asks it, too."""
        for work in (self.abort, partial(self.give_up, words)):
            threading.Thread(target=work, name="loss", daemon=True).start()

    def give_up(self, words: str) -> None:
        time.sleep(LET_GO_SECONDS)
        with self.gate:
            # None is begun any more.
            inside = self.inside
        if inside:
            for watcher in self.watchers:
                watcher(words)

    def open(self, opening: Opening) -> Opened:
        return self.settled(self.call("open", opening), lambda: self.engine.open(opening))

    def fill(self, pieces: Sequence[Piece]) -> Flight[Filled]:
        pieces = self.split.marked(pieces)
        step = self.call("fill", pieces)
        return LeadingFlight(self, step, self.guarded(step, lambda: self.engine.fill(pieces)))

    def round(self, windows: Sequence[Window]) -> Flight[Landed]:
        step = self.call("round", tuple(windows))
        return LeadingFlight(self, step, self.guarded(step, lambda: self.engine.round(windows)))

    def drop(self, saved: Saved) -> None:
        self.settled(self.call("drop", saved), lambda: self.engine.drop(saved))

    def close(self, stream: int) -> None:
        self.settled(self.call("close", stream), lambda: self.engine.close(stream))

    def memory(self) -> Memory:
        return self.engine.memory()

    def shutdown(self) -> None:
        try:
            # A round that runs ahead comes to its end while the loss of a rank is still heard of.
            with suppress(EngineLost), self.inside_a_call():
                self.engine.shutdown()
        finally:
            self.link.end()

    def call(self, name: str, *args: Any) -> int:
        if self.link.lost is None:
            step = self.link.call(name, *args)
        if self.link.lost is not None:
            raise EngineLost(self.link.lost)
        return step

    def settled(self, step: int, work: Callable[[], Result]) -> Result:
        """Do this rank's part of a call, and compare its outcome with the others'."""
        result = self.guarded(step, work)
        self.link.settle(step, digest(result))
        return result

    @contextmanager
    def inside_a_call(self) -> Iterator[None]:
        """Of no call that begins or ends after a loss is anything taken: what a forward gives that
        was let go of is nothing."""
        with self.gate:
            self.refuse_if_lost()
            self.inside = True
        try:
            yield
        finally:
            with self.gate:
                self.inside = False
            self.refuse_if_lost()

    def refuse_if_lost(self) -> None:
        if self.link.lost is not None:
            raise EngineLost(self.link.lost)

    def guarded(self, step: int, work: Callable[[], Result]) -> Result:
        try:
            with self.inside_a_call():
                return work()
        except OUTCOMES as error:
            self.link.settle(step, digest_of(error))
            raise
        except EngineFault as error:
            # The others may wait for this rank, in what its next call would take part in.
            self.link.settle(step, NOTHING, fault=in_words(error))
            self.link.agree(step)
            self.refuse_if_lost()
            raise
        except RuntimeError as error:
            # What ranks exchange fails when one of them is gone: its own end says why.
            self.link.thread.join(REASON_SECONDS)
            self.link.lose(f"rank 0: {in_words(error)}")
            raise EngineLost(self.link.lost) from error
        except Exception as error:
            # The others make the call, and may wait for this rank in it.
            self.link.lose(f"rank 0: {in_words(error)}")
            raise


def digest_of(error: Exception) -> str:
    return digest((type(error).__name__, str(error)))


def follow(engine: Engine, link: Follower) -> None:
    """Make rank 0's calls until it ends; raises what ends this rank alone."""
    while (call := link.next()) is not None:
        try:
            outcome = made(engine, call, link)
        except EngineFault as error:
            link.report(call["step"], NOTHING, in_words(error))
        except Exception as error:
            if isinstance(error, RuntimeError):
                # As on rank 0: another rank's end may be why, and is told by that.
                link.thread.join(REASON_SECONDS)
            if not isinstance(error, EngineLost | RankGone):
                # Before it is told: rank 0 then ends this process.
                LOG.error("rank 0's call failed here: %s", in_words(error), exc_info=error)
            link.lose(in_words(error))
            raise
        else:
            link.report(call["step"], outcome)
    link.close()
    engine.shutdown()


def made(engine: Engine, call: Mapping[str, Any], link: Follower) -> str:
    """Make one call; the hash of its outcome. Raises `EngineLost` where rank 0 goes another way."""
    if "call" not in call:
        raise diverged(call, "it runs a round ahead, or not, and was not asked")
    held = partial(held_back, link, call["step"])
    calls: dict[str, Callable[..., Any]] = {
        "open": engine.open,
        "fill": lambda pieces: engine.fill(pieces).land(held),
        "round": lambda windows: engine.round(windows).land(held),
        "drop": engine.drop,
        "close": engine.close,
    }
    try:
        return digest(calls[call["call"]](*call["args"]))
    except OUTCOMES as error:
        return digest_of(error)


def held_back(link: Follower, step: int) -> bool:
    """Whether the round after a step's is not launched before it is asked for, as rank 0 says."""
    said = link.next()
    if said is None:
        return True
    if "ahead" not in said or said["step"] != step:
        raise diverged(said, f"it was to say whether a round runs ahead after step {step}")
    return not said["ahead"]


def diverged(said: Mapping[str, Any], words: str) -> EngineLost:
    return EngineLost(f"step {said['step']} of rank 0 is another: {words}: ranks diverged")


# -- meeting -----------------------------------------------------------------------------------


@contextmanager
def until_ready() -> Iterator[None]:
    """Of a start: a rank that is gone refuses it, whatever the others are doing."""
    try:
        yield
    except RankGone as error:
        raise NotAllReady(f"a rank ended before all were ready: {error}") from None


@until_ready()
def ready(engine: Engine) -> Coming:
    """A rank's links, which nobody hears any more, once all ranks are ready.

    Raises `StartError` where one of them is gone.
    """
    assert isinstance(engine, Ranked), engine
    assert engine.group is not None, engine
    coming = engine.group.coming
    assert coming is not None, engine.group
    engine.group.exchange(b"")
    coming.hand_over()
    return coming


def leading(engine: Engine, split: IndexSplit) -> LeadingEngine:
    """Rank 0's engine, linked to the others; as `ready`."""
    coming = ready(engine)
    assert isinstance(engine, Ranked), engine
    assert engine.group is not None, engine
    return LeadingEngine(engine, Leader(coming.ends), split, engine.group.abort)


def following(engine: Engine, on_lost: OnLost) -> Follower:
    """Another rank's link, for `follow`; as `ready`."""
    coming = ready(engine)
    return Follower(coming.ends[0], on_lost, coming.early)
