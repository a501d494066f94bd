"""Any arrivals, lengths, cancels, faults and settings: what a host promises at every moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tensorfold.backends.fake.options import Trouble
from tensorfold.core.engine_api import Info
from tensorfold.core.errors import EngineFault, EngineLost, RequestError
from tensorfold.core.lane_host.host import HostOptions
from tests.null.hosting import Rig, Shelf, job, prompt_of

CHUNK = 32
GRID = 16

# How many calls later a trouble comes; mostly it does not.
SOMETIMES = (None, None, None, 0, 1, 3)
PLACES = ("open", "fill", "fill.land", "round", "round.land", "close", "drop")


@st.composite
def fakes(draw: st.DrawFn) -> dict[str, Any]:
    """Limits of a fake engine and fills that `settings.fill_fields` would let through."""
    passes = draw(st.sampled_from([0, 0, 1, 2]))
    pack_rows = draw(st.sampled_from([0, 40, 200]))
    lanes = draw(st.integers(1, 5))
    fills: dict[str, Any] = {}
    if draw(st.booleans()):
        fills["fill_chunks"] = draw(st.integers(1, 3))
        fills["fill_many"] = draw(st.booleans())
        fills["fill_rounds"] = draw(st.integers(0, 3))
        fills["fill_drain"] = draw(st.sampled_from([0, 8, 64, 500]))
        if passes != 1:
            fills["fill_cut_in"] = draw(st.sampled_from([0, 6, 40]))
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
        "round_rows": draw(st.sampled_from([0, 0, lanes, 2 * lanes])),
        "drafts": draw(st.integers(0, 6)),
        "wrong_in": draw(st.sampled_from([0, 2, 5])),
        "room_lanes": draw(st.sampled_from([0, 0, 0, 1, 3])),
        "room_tokens": draw(st.sampled_from([0, 0, 0, 0, 300])),
        "fills": fills,
    }


def largest_step(info: Info) -> int:
    return max(info.fill_chunks * info.chunk_rows, min(info.fill_pack, info.pack_rows))


class HostMachine(RuleBasedStateMachine):
    """Each rule is something that may happen to a host; the invariants hold after each."""

    @initialize(
        fake=fakes(),
        skips=st.integers(0, 3),
        marks=st.sampled_from([(), (16,), (32, 48), (16, 64)]),
        after=st.sampled_from([0.0, 5.0, 1000.0]),
    )
    def begin(self, fake: dict[str, Any], skips: int, marks: tuple[int, ...], after: float) -> None:
        options = HostOptions(background_after=after, skips=skips, queue_requests=30)
        self.rig = Rig(
            options=options,
            cost=lambda call: 1.0 if call.kind.endswith(".land") else 0.0,
            host={"keeper": Shelf(*marks, most=4)},
            **fake,
        )
        self.info = self.rig.engine.info
        self.roomy = not (fake["room_lanes"] or fake["room_tokens"])
        self.ages = after < 1000.0
        self.next_stream = 1
        self.rounds = 0
        self.seen = 0
        self.stepped: dict[int, int] = {}  # rounds at a pass's opening or last piece
        self.lost = False

    # -- what may happen -----------------------------------------------------------------------

    @rule(
        rows=st.one_of(st.integers(1, 12), st.integers(1, 200)),
        most=st.integers(1, 12),
        count=st.integers(1, 4),
        shared=st.booleans(),
        background=st.booleans(),
        draft=st.booleans(),
    )
    def arrive(
        self, rows: int, most: int, count: int, shared: bool, background: bool, draft: bool
    ) -> None:
        streams = range(self.next_stream, self.next_stream + count)
        fields: dict[str, Any] = {"prompt": prompt_of(rows)} if shared else {}
        jobs = [job(s, rows, most, background=background, draft=draft, **fields) for s in streams]
        refused = 0
        try:
            self.rig.submit(*jobs)
        except RequestError as error:
            refused = error.status
        assert refused in ((503,) if self.lost else (0, 429))
        self.next_stream += count

    @rule(turns=st.integers(1, 8))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.rig.host.turn()
            self.judge()

    @rule(back=st.integers(0, 8))
    def cancel(self, back: int) -> None:
        self.rig.host.cancel(self.next_stream - back)

    @rule(place=st.sampled_from(PLACES), later=st.sampled_from(SOMETIMES))
    def do_nothing_once(self, place: str, later: int | None) -> None:
        self.trouble(place, later, error=EngineFault("did nothing"))

    @rule(place=st.sampled_from(["fill.land", "round.land"]), later=st.sampled_from(SOMETIMES))
    def hurt(self, place: str, later: int | None) -> None:
        self.trouble(place, later, fault="NaN")

    @precondition(lambda self: self.next_stream > 12)
    @rule(place=st.sampled_from(PLACES), unlikely=st.integers(0, 9))
    def lose(self, place: str, unlikely: int) -> None:
        if unlikely == 0:
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
        info = self.info
        rows = 0
        for call in calls:
            if call.kind == "open":
                self.stepped[call.streams[0]] = self.rounds
            if call.kind == "round.land":
                self.rounds += 1
            if call.kind == "fill":
                rows += sum(piece.end - piece.start for piece in call.pieces)
                for stream in call.streams:
                    self.judge_wait(self.rounds - self.stepped[stream])
                    self.stepped[stream] = self.rounds
        if info.fill_chunks:
            assert rows <= max(info.fill_drain, largest_step(info))

    def judge_wait(self, waited: int) -> None:
        info = self.info
        if info.fill_many:
            assert waited <= info.lanes * max(1, info.fill_rounds) + bool(info.fill_cut_in)

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

    @invariant()
    def keeps_the_order_inside_a_class(self) -> None:
        if not self.roomy or self.ages:
            return
        background = {s: made.background for s, made in self.rig.jobs.items()}
        opened = [c.streams[0] for c in self.rig.calls if c.kind == "open"]
        for kind in (False, True):
            of_kind = [stream for stream in opened if background[stream] is kind]
            assert of_kind == sorted(of_kind)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            while self.rig.host.turn():
                self.judge()
            self.adds_up()
            self.rig.check(lost=self.lost)
            self.rig.host.close(0.0)
            if self.rig.host.stats().lost is None:
                assert self.rig.engine.kept == {}
