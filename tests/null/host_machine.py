"""Any arrivals, lengths, cancels, faults and settings: what a host promises at every moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tensorfold.backends.fake.options import Call, Trouble
from tensorfold.core.copies import Copies
from tensorfold.core.errors import EngineFault, EngineLost, RequestError
from tensorfold.core.lane_host.fills import NextFill, next_fill
from tensorfold.core.lane_host.host import HostOptions
from tensorfold.core.lane_host.stream import HostStats, Job
from tests.null.drafters import LIES, Drafter, after_threes, knowing, long_words, mistaken
from tests.null.host_bounds import Bounds
from tests.null.hosting import Rig, Shelf, job, prompt_of

CHUNK = 32
GRID = 16

# How many calls later a trouble comes; mostly it does not.
SOMETIMES = (None, None, None, None, None, 0, 1, 3)
SELDOM = (*[False] * 14, True)
PLACES = ("open", "fill", "fill.land", "round", "round.land", "close", "drop")
# What a job may ask beside its tokens.
WISHES: dict[str, dict[str, Any]] = {
    "none": {},
    "end tokens": {"end_tokens": frozenset(range(0, 97, 7))},
    "stop": {"ends": lambda tokens: sum(tokens[-2:]) % 5 == 0},
    "log-probabilities": {"logprobs": 2},
    "no drafts": {"draft": False},
    "forced tokens": {"forces": after_threes},
    "all of them": {
        "forces": long_words,
        "end_tokens": frozenset(range(0, 97, 9)),
        "ends": lambda tokens: sum(tokens[-3:]) % 11 == 0,
        "logprobs": 1,
    },
}
# Drafters of the host beside copies.
STRANGERS = ("none", "mistaken", "liar", "both")


# Milliseconds by rows: none timed, rows nearly free, steps of four, dear ones.
ROUND_COSTS: tuple[tuple[tuple[int, float], ...], ...] = (
    (),
    ((1, 5.0), (64, 5.1)),
    tuple((rows, 3.0 + rows) for rows in range(4, 65, 4)),
    tuple((rows, 1.0 * rows * rows) for rows in range(1, 65)),
)


@st.composite
def fakes(draw: st.DrawFn) -> dict[str, Any]:
    """Limits of a fake engine and fills that `settings.fill_fields` would let through."""
    passes = draw(st.sampled_from([0, 0, 1, 2]))
    pack_rows = draw(st.sampled_from([0, 40, 200]))
    lanes = draw(st.integers(1, 6))
    fills: dict[str, Any] = {}
    if draw(st.sampled_from([True, True, True, False])):
        fills["fill_chunks"] = draw(st.integers(1, 3))
        fills["fill_many"] = draw(st.booleans())
        fills["fill_rounds"] = draw(st.integers(0, 3))
        fills["fill_drain"] = draw(st.sampled_from([0, 8, 24, 64, 500]))
        if passes != 1:
            fills["fill_cut_in"] = draw(st.sampled_from([0, 6, 12, 40]))
    if passes != 1 and pack_rows:
        fills["fill_pack"] = draw(st.integers(0, pack_rows))
    return {
        "lanes": lanes,
        "context": 512,
        "chunk_rows": CHUNK,
        "grid": GRID,
        "passes": passes,
        "pack_rows": pack_rows,
        "window_rows": draw(st.integers(1, 5)),
        "round_rows": draw(st.sampled_from([0, 0, lanes, 2 * lanes, -(-lanes // 2), 1])),
        "drafts": draw(st.integers(0, 6)),
        "wrong_in": draw(st.sampled_from([0, 2, 5])),
        "round_costs": draw(st.sampled_from(ROUND_COSTS)),
        "draft_costs": draw(st.sampled_from([(), ((1, 0.1), (6, 0.5)), ((1, 5.0),)])),
        "room_lanes": draw(st.sampled_from([0, 0, 0, 1, 3])),
        "room_tokens": draw(st.sampled_from([0, 0, 0, 0, 300])),
        "fills": fills,
    }


class HostMachine(RuleBasedStateMachine):
    """Each rule is something that may happen to a host; the invariants hold after each."""

    choose: NextFill = staticmethod(next_fill)

    @initialize(
        fake=fakes(),
        skips=st.integers(0, 3),
        marks=st.sampled_from([(), (16,), (32, 48), (16, 64)]),
        after=st.sampled_from([0.0, 5.0, 1000.0]),
        bounds=st.sampled_from([(30, 0), (30, 0), (5, 0), (30, 300)]),
        strangers=st.sampled_from(STRANGERS),
        lie=st.sampled_from(sorted(LIES)),
    )
    def begin(
        self,
        fake: dict[str, Any],
        skips: int,
        marks: tuple[int, ...],
        after: float,
        bounds: tuple[int, int],
        strangers: str,
        lie: str,
    ) -> None:
        mixed = Drafter("mistaken", knowing({}))
        drafters = {
            "none": [Copies()],
            "mistaken": [mixed, Copies()],
            "liar": [Copies(), Drafter("liar", LIES[lie][0])],
            "both": [Drafter("liar", LIES[lie][0]), Copies(), mixed],
        }[strangers]
        self.options = HostOptions(
            background_after=after, skips=skips, queue_requests=bounds[0], queue_rows=bounds[1]
        )
        self.rig = Rig(
            options=self.options,
            cost=lambda call: 1.0 if call.kind.endswith(".land") else 0.0,
            host={
                "keeper": Shelf(*marks, most=4),
                "next_fill": self.choose,
                "drafters": drafters,
            },
            before=self.before,
            **fake,
        )
        self.info = self.rig.engine.info
        mixed.ask = mistaken(knowing(self.rig.jobs), skips + 7)
        self.bounds = Bounds(self.info, self.rig.jobs)
        self.skips = skips
        self.roomy = not (fake["room_lanes"] or fake["room_tokens"])
        self.next_stream = 1
        self.seen = 0
        self.nothing_done: list[Call] = []
        self.meanwhile: dict[str, list[Callable[[], None]]] = {}
        self.cancelled: set[int] = set()
        self.closing = self.lost = False

    # -- what may happen -----------------------------------------------------------------------

    @rule(
        rows=st.one_of(st.integers(1, 12), st.integers(1, 200)),
        most=st.integers(1, 12),
        count=st.integers(1, 4),
        shared=st.booleans(),
        background=st.booleans(),
        wish=st.sampled_from(sorted(WISHES)),
    )
    def arrive(
        self, rows: int, most: int, count: int, shared: bool, background: bool, wish: str
    ) -> None:
        streams = range(self.next_stream, self.next_stream + count)
        fields = {**WISHES[wish], **({"prompt": prompt_of(rows)} if shared else {})}
        jobs = [job(stream, rows, most, background=background, **fields) for stream in streams]
        refused = retry_after = 0
        before = self.rig.host.stats()
        try:
            self.rig.submit(*jobs)
        except RequestError as error:
            refused, retry_after = error.status, error.retry_after or 0
        assert bool(refused) == (retry_after >= 1)
        assert refused in ((503,) if self.closing or self.lost else (0, 429))
        if refused != 503:
            self.check_bounds(before, jobs, refused)
        self.next_stream += count

    def check_bounds(self, before: HostStats, jobs: list[Job], refused: int) -> None:
        """Refused is what would wait beyond the bounds, and nothing else; one always may wait."""
        rows = before.waiting_rows + sum(len(made.prompt) for made in jobs)
        most_rows = self.options.queue_rows or 1 << 40
        full = before.waiting + len(jobs) > self.options.queue_requests or rows > most_rows
        assert (refused == 429) == (full and before.waiting > 0)

    @rule(turns=st.integers(1, 8))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.rig.host.turn()
            self.judge()

    @rule(count=st.integers(2, 6), rows=st.integers(1, 10), turns=st.integers(1, 3))
    def burst(self, count: int, rows: int, turns: int) -> None:
        self.arrive(rows, 5, count, False, False, "none")
        self.turn(turns)

    @rule(rows=st.integers(60, 300), turns=st.integers(1, 3))
    def come_with_a_long_prompt(self, rows: int, turns: int) -> None:
        self.arrive(rows, 9, 1, False, False, "none")
        self.turn(turns)

    @rule(back=st.integers(0, 8))
    def cancel(self, back: int) -> None:
        self.cancelled.add(self.next_stream - back)
        self.rig.host.cancel(self.next_stream - back)

    @rule(place=st.sampled_from(PLACES), back=st.integers(1, 8))
    def cancel_meanwhile(self, place: str, back: int) -> None:
        self.meanwhile.setdefault(place, []).append(lambda: self.cancel(back))

    @rule(place=st.sampled_from(PLACES), rows=st.integers(1, 80))
    def arrive_meanwhile(self, place: str, rows: int) -> None:
        def arrive() -> None:
            self.arrive(rows, 4, 1, False, False, "none")

        self.meanwhile.setdefault(place, []).append(arrive)

    @precondition(lambda self: self.next_stream > 12)
    @rule(place=st.sampled_from(PLACES), happens=st.sampled_from(SELDOM))
    def close_meanwhile(self, place: str, happens: bool) -> None:
        def close() -> None:
            self.closing = True
            self.rig.host.close_now()

        if happens:
            self.meanwhile.setdefault(place, []).append(close)

    def before(self, call: Call) -> None:
        """Watches every call of the engine before it does anything."""
        options = self.rig.engine.options
        if any(trouble.error and trouble.hits(call) for trouble in options.troubles):
            self.nothing_done.append(call)
        for happens in self.meanwhile.pop(call.kind, []):
            happens()

    @rule(place=st.sampled_from(PLACES), later=st.sampled_from(SOMETIMES))
    def do_nothing_once(self, place: str, later: int | None) -> None:
        self.trouble(place, later, error=EngineFault("did nothing"))

    @rule(place=st.sampled_from(["fill.land", "round.land"]), later=st.sampled_from(SOMETIMES))
    def hurt(self, place: str, later: int | None) -> None:
        self.trouble(place, later, fault="NaN")

    @precondition(lambda self: self.next_stream > 12)
    @rule(place=st.sampled_from(PLACES), happens=st.sampled_from(SELDOM))
    def lose(self, place: str, happens: bool) -> None:
        if happens:
            self.trouble(place, 0, error=EngineLost("gone"))

    def trouble(self, place: str, later: int | None, **what: Any) -> None:
        if later is None:
            return
        index = self.rig.engine.counts.get(place, 0) + later
        options = self.rig.engine.options
        if not any(t.kind == place and abs(t.call - index) < 2 for t in options.troubles):
            troubles = (*options.troubles, Trouble(kind=place, call=index, **what))
            self.rig.engine.options = replace(options, troubles=troubles)

    # -- what holds ----------------------------------------------------------------------------

    def judge(self) -> None:
        """Hold the calls of the last turn to the bounds."""
        calls, self.seen = self.rig.calls[self.seen :], len(self.rig.calls)
        self.bounds.see(calls, self.nothing_done)
        self.bounds.end_turn(self.rig.engine.streams)
        self.nothing_done.clear()
        assert self.bounds.broken == [], self.rig.events

    @invariant()
    def adds_up(self) -> None:
        stats = self.rig.host.stats()
        self.lost = stats.lost is not None
        placed = stats.waiting + stats.filling + stats.live
        assert stats.started == stats.finished + stats.failed + stats.aborted + placed
        assert stats.started == len(self.rig.jobs)
        assert self.rig.engine.slips == []
        if not self.lost:
            assert len(self.rig.engine.streams) == stats.filling + stats.live <= self.info.lanes

    def check_order(self) -> None:
        """Inside a class nobody is passed but while it waits for memory, and then by few."""
        opened = [call.streams[0] for call in self.rig.calls if call.kind == "open"]
        # The last try is the one that worked; whoever left before it had no turn.
        last = {stream: place for place, stream in enumerate(opened)}
        in_turn = [stream for stream in last if stream not in self.cancelled]
        skips = 0 if self.roomy else self.skips
        for stream in in_turn:
            same = self.rig.jobs[stream].background
            passed_by = [
                later
                for later in in_turn
                if later > stream
                and last[later] < last[stream]
                and self.rig.jobs[later].background == same
            ]
            assert len(passed_by) <= skips, (stream, passed_by)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            while self.rig.host.turn():
                self.judge()
            self.adds_up()
            if not (self.closing or self.lost):
                self.check_order()
            self.rig.check(lost=self.lost)
            self.rig.host.close(0.0)
            if self.rig.host.stats().lost is None:
                assert self.rig.engine.kept == {}
