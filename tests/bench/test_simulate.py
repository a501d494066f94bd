"""The simulator: its fit, its figures, its pictures, and the properties it asserts."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tensorfold.core.errors import StartError
from tensorfold.core.lane_host.fills import CUT_IN as CUT_IN_KIND
from tensorfold.core.lane_host.fills import DRAINED, PACKED, PIECE, WHOLE
from tensorfold.core.server.trace_file import json_of
from tensorfold.tools import simulate
from tensorfold.tools.sim import arms, bursts, costs, figures, timeline
from tensorfold.tools.sim.beside import LONG, SHORT, short_story
from tensorfold.tools.sim.report import Check, Outcome, Table
from tensorfold.tools.sim.sizes import Sizes
from tensorfold.tools.sim.world import Clock, World, faithful, job_of, own_reply

FIT = costs.fitted()
FREE = dataclasses.replace(FIT, c=0.0)


def test_the_fit_gives_back_the_published_rounds_and_first_tokens() -> None:
    n, w = costs.PUBLISHED_STREAMS, costs.WINDOW_ROWS
    one_pass = FIT.pass_ms([(0, costs.ASSUMED_ROWS)])
    assert one_pass == pytest.approx(75.0)
    assert FIT.a / one_pass == pytest.approx(costs.ASSUMED_SHARE)
    assert FIT.round_ms(n * w, 1) == pytest.approx(61, rel=0.01)
    assert FIT.round_ms(n * w, n) == pytest.approx(97, rel=0.01)
    apart = sum(FIT.round_ms(k * w, k) for k in range(1, n))
    assert n * one_pass + apart == pytest.approx(1010.0)


def test_the_drafts_make_the_published_tokens_a_round() -> None:
    assert pytest.approx(2.6, rel=0.01) == costs.TOKENS_A_ROUND
    stories = [bursts.story_of(arms.UNSET, FIT, salt=salt, streams=1) for salt in range(16)]
    rounds = sum(story.stats.rounds for story in stories)
    assert 16 * 255 / rounds == pytest.approx(2.6, rel=0.05)


@pytest.mark.parametrize("share", [0.3, 0.5, costs.ASSUMED_SHARE, 0.8])
def test_a_pack_of_eight_pays_one_a(share: float) -> None:
    model = dataclasses.replace(costs.fitted(share=share), c=0.0)
    one, eight = model.pass_ms([(0, 64)]), model.pass_ms([(0, 64)] * 8)
    assert eight == pytest.approx(8 * one - 7 * model.a)


def test_equal_windows_are_priced_once_and_others_each() -> None:
    def slowest_round(equal: bool) -> float:
        story = bursts.story_of(arms.UNSET, FIT, salt=5, equal=equal)
        rounds = [f for f in figures.forwards(story.turns) if len(f.windows) == 8]
        rows = {sum(len(window.tokens) for window in f.windows) for f in rounds}
        assert max(rows) == 8 * costs.WINDOW_ROWS
        return 1000 * max(f.landed - f.launched for f in rounds)

    assert slowest_round(True) == pytest.approx(FIT.round_ms(40, 1))
    assert slowest_round(False) == pytest.approx(FIT.round_ms(40, 8))


@pytest.fixture(scope="module")
def arms_of_a_burst() -> dict[str, costs.Figures]:
    sizes = Sizes(prompts=3)
    return {name: bursts.figures_of(arm, FIT, sizes) for name, arm in arms.BURST_ARMS.items()}


def test_the_burst_keeps_its_bars(arms_of_a_burst: dict[str, costs.Figures]) -> None:
    checks = [*bursts.drain_checks(arms_of_a_burst), *bursts.pack_checks(arms_of_a_burst, "")]
    assert [check for check in checks if not check.holds] == []
    for name, wanted in costs.PUBLISHED.items():
        found = arms_of_a_burst[name]
        assert found.slowest_first == pytest.approx(wanted.slowest_first, rel=0.03)
        assert found.steady == pytest.approx(wanted.steady, rel=0.1)  # three prompts tell roughly


def test_a_burst_misses_the_bars_where_it_should(arms_of_a_burst: dict[str, costs.Figures]) -> None:
    swapped = {**arms_of_a_burst, "drain": arms_of_a_burst["many"]}
    assert [check.holds for check in bursts.drain_checks(swapped)] == [False, False]
    slow = {**arms_of_a_burst, "pack": arms_of_a_burst["many"]}
    assert [check.holds for check in bursts.pack_checks(slow, "")] == [False, False]


def test_aggregate_and_steady_are_of_the_clients_times() -> None:
    world = World({}, FIT)
    world.arrive(0.0, job_of(1, 4, 5), job_of(2, 4, 5))
    streams = world.run().streams
    for seen, times in zip(streams, ([1.0, 2.0, 3.0], [2.0, 3.0, 5.0]), strict=True):
        seen.times[:], seen.counts[:] = times, [1, 2, 2]
    found = figures.burst(streams)
    assert found.aggregate == 8 / 4
    assert found.steady == (2 + 2) / 1
    assert found.slowest_first == 2.0


def test_events_happen_in_the_middle_of_a_wait() -> None:
    clock, seen = Clock(), list[float]()
    for moment in (2.0, 0.5, 7.0):
        clock.at(moment, lambda: seen.append(clock()))
    clock.wait(3.0)
    assert (seen, clock()) == ([0.5, 2.0], 3.0)


def test_a_request_that_comes_during_a_forward_is_taken_after_it() -> None:
    world = World({"fill_chunks": 1}, FREE)
    world.arrive(0.0, job_of(1, 512, 4))
    world.arrive(0.1, job_of(2, 64, 4))
    story = world.run()
    assert story.seen(2).arrived == 0.1
    landed = story.turns[0].forwards[0].landed
    assert figures.first_launch(story.turns, 2) >= landed > 0.1
    assert faithful(story)


def test_a_reply_that_is_not_its_own_is_told() -> None:
    world = World({}, FIT)
    world.arrive(0.0, job_of(1, 40, 30))
    story = world.run()
    assert story.seen(1).tokens == own_reply(story.seen(1).job)
    story.seen(1).tokens[7] ^= 1
    assert not faithful(story)


@pytest.mark.parametrize(("arm", "pieces"), [(arms.MANY, 2), (arms.CUT_IN, 1), (arms.SMOOTH, 1)])
@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("live", [False, True])
def test_a_short_request_starts_within_two_pieces(
    arm: dict[str, object], pieces: int, rounds: int, live: bool
) -> None:
    story = short_story(
        {**arm, "fill_rounds": rounds}, FIT, rows=6_000, live=live, moments=(0.3,), tokens=300
    )
    assert figures.pieces_before(story, LONG, SHORT) <= pieces
    assert faithful(story)


def test_settings_that_a_server_refuses_are_refused() -> None:
    with pytest.raises(StartError, match="TF_FILL_DRAIN needs TF_FILL_CHUNKS"):
        World({"fill_drain": 64}, FIT)


# -- the picture -----------------------------------------------------------------------------------


def kinds(arm: dict[str, object], rows: tuple[int, ...]) -> list[str]:
    world = World(arm, FIT)
    world.arrive(0.0, *(job_of(stream, count, 4) for stream, count in enumerate(rows)))
    shown = timeline.bars(world.run().turns)
    return [bar.kind for bar in shown if bar.kind != timeline.ROUND]


def test_every_kind_of_fill_has_its_bar() -> None:
    assert kinds({**arms.MANY}, (64, 64)) == [WHOLE, WHOLE]
    assert kinds({**arms.DRAIN}, (64, 64)) == [WHOLE, DRAINED]
    assert kinds({**arms.PACK}, (64, 64)) == [PACKED, PACKED]
    assert kinds({**arms.CUT_IN}, (600, 64)) == [PIECE, CUT_IN_KIND, PIECE]


def test_a_lane_is_taken_again_when_its_stream_has_gone() -> None:
    world = World({}, FIT)
    for stream in range(6):
        world.arrive(5.0 * (stream // 2), job_of(stream, 20, 8))
    shown = timeline.bars(world.run().turns)
    assert {bar.stream: bar.lane for bar in shown} == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1}
    by_lane = [[b for b in shown if b.lane == lane] for lane in (0, 1)]
    for lane in by_lane:
        for before, after in pairwise(lane):
            assert before.end <= after.start


def test_what_a_server_tells_of_its_turns_reads_as_the_turns(tmp_path: Path) -> None:
    turns = short_story(arms.SMOOTH, FIT, rows=1500, live=True, moments=(0.5,), tokens=100).turns
    shown = [(bar.lane, bar.stream, bar.kind) for bar in timeline.bars(turns)]
    told = [json_of(turn) for turn in turns]
    path = tmp_path / "trace.jsonl"
    for text in ("\n".join([*told[:3], '{"left_out":1}', *told[3:]]), turns_document(told)):
        path.write_text(text)
        read = timeline.read_trace(path)
        assert [(bar.lane, bar.stream, bar.kind) for bar in timeline.bars(read)] == shown
        assert [turn.ended for turn in read] == pytest.approx(
            [turn.ended for turn in turns], abs=1e-6
        )


def turns_document(told: list[str]) -> str:
    return f'{{"turns":[{",".join(told)}]}}'


@pytest.mark.parametrize("words", ["{", "[]", '{"turn": 1}', "3"])
def test_what_is_no_trace_is_refused(tmp_path: Path, words: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(words)
    with pytest.raises(StartError, match="no trace of turns"):
        timeline.read_trace(path)


def test_without_matplotlib_plot_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(simulate, "SCENARIOS", {"published-burst": outcome_of(True)})
    picture = tmp_path / "lanes.png"
    assert simulate.main(["--scenario", "published-burst", "--plot", str(picture)]) == 2
    assert "--plot needs matplotlib" in capsys.readouterr().err
    assert not picture.exists()


# -- the command -----------------------------------------------------------------------------------


def outcome_of(holds: bool) -> Callable[[Sizes], Outcome]:
    table = Table(title="t", columns=("arm", "bar"), rows=(("x", holds), ("y", None)))
    check = Check(name="a bar", holds=holds, found="1 of 2")
    return lambda sizes: Outcome(scenario="published-burst", tables=(table,), checks=(check,))


@pytest.mark.parametrize("holds", [True, False])
def test_a_missed_bar_is_an_exit_status(
    holds: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "SCENARIOS", {"published-burst": outcome_of(holds)})
    assert simulate.main(["--scenario", "published-burst"]) == (0 if holds else 1)
    told = capsys.readouterr().out
    assert ("NOT OK" in told, "missed: a bar: 1 of 2" in told) == (not holds, not holds)
    assert simulate.main(["--scenario", "published-burst", "--json"]) == (0 if holds else 1)
    assert json.loads(capsys.readouterr().out)["holds"] is holds


def test_the_published_burst_is_one_json_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bursts, "SHARES", bursts.SHARES[:1])
    monkeypatch.setattr(bursts, "PUBLISHED_FOUR", {})
    simulate.main(["--scenario", "published-burst", "--json", "--prompts", "1"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["arms"]) == {"unset", "many", "drain", "pack"}
    for arm in found["arms"].values():
        assert set(arm) == {"aggregate", "steady", "slowest_first"}


@pytest.mark.parametrize("given", [[], ["--scenario", "none"], ["--trace", "x"]])
def test_a_wrong_command_line_is_told_in_one_sentence(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate.main(given) == 2
    error = capsys.readouterr().err
    assert error.startswith("simulate: ")
    assert len(error.splitlines()) == 1
