"""`tools/bench_decode.py` itself: floors that can be counted by hand, and runs on the CPU."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorfold.core.errors import StartError
from tensorfold.core.settings import read
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tensorfold.tools import bench_decode, widths
from tensorfold.tools.decode import bursting, engines, floors, soundness
from tensorfold.tools.decode.engines import RandomTensors
from tensorfold.tools.decode.figures import Figures

SMALL = ["--widths", "tiny", "--backend", "cpu-reference", "--streams", "1,3", "--context", "40"]
SMALL += ["--prompts", "100", "--long", "150", "--chunk", "128", "--reps", "1"]


def of_glm53(layers: int = 4) -> floors.Floors:
    config = GLM53.config(widths.tiny_glm53(layers))
    made = RandomTensors(GLM53.tensors(config), dtype=torch.bfloat16, device=torch.device("cpu"))
    weights = GLM53.weights(config, made, Path())
    return floors.Floors(family="glm53", config=config, weights=weights, dtype="bfloat16")


def test_a_rounds_floor_is_its_weights_picked_experts_and_state() -> None:
    made = of_glm53()
    total = sum(
        tensor.numel() * tensor.element_size()
        for which in (False, True)
        for tensor in floors.tensors_of(made.weights, experts=which)
    )
    expert = 3 * 64 * 32 * 2
    embed = 4096 * 64 * 2
    fixed = total - 3 * 16 * expert - embed
    kda = 2 * 4 * 16 * 16 * 4 + 2 * 3 * 3 * 64 * 2
    # Context 10 keeps every token; at 100 the list is full and the index reads its pools.
    near = 10 * 32 * 2
    far = 19 * 32 * 2 + 25 * 32 * 2
    row = 64 * 2
    assert made.round_bytes([4, 4, 4], [10]) == fixed + 12 * expert + 3 * kda + near + row
    both = made.round_bytes([7, 5, 6], [10, 100])
    assert both == fixed + 18 * expert + 6 * kda + near + far + 2 * row


def test_of_an_engram_table_the_named_rows_are_read_and_not_the_whole(tmp_path: Path) -> None:
    found = []
    for start in (50, 6000):
        raw = widths.tiny_dsv41(6, engram=start)
        engines.write_token_map(raw, tmp_path)
        config = DSV41.config(raw)
        specs = DSV41.tensors(config)
        made = RandomTensors(specs, dtype=torch.bfloat16, device=torch.device("cpu"))
        weights = DSV41.weights(config, made, tmp_path)
        own = floors.Floors(family="dsv41", config=config, weights=weights, dtype="bfloat16")
        found.append(own)
    small, large = found
    assert large.weights.layers[1].engram.table.value_SD.numel() > 1e6
    assert small.round_bytes([2] * 6, [40]) == large.round_bytes([2] * 6, [40])
    assert small.prompt_operations(0, 40) == large.prompt_operations(0, 40)
    # A row more in the round: 6 columns of 32 values are named by it.
    config = DSV41.config(widths.tiny_dsv41(6))
    state = floors.dsv41_bytes(config, 40, "bfloat16") + 128 * 2
    assert small.round_bytes([2] * 6, [40, 40]) - small.round_bytes([2] * 6, [40]) == (
        state + 6 * 32 * 2
    )


def test_a_prompts_operations_grow_with_rows_and_what_they_see() -> None:
    made = of_glm53()
    whole, first = made.prompt_operations(0, 300), made.prompt_operations(0, 100)
    head = 2 * made.weights.head.numel()
    rest = made.prompt_operations(100, 300)
    assert whole == first + rest - head
    # The later rows see more.
    assert rest - head > 2 * (first - head)
    assert made.prompt_operations(0, 1) > 0


def test_the_released_sizes_give_the_known_amounts() -> None:
    """A round of one row of four layers reads about 4.2 GB; 8,192 rows are about 25 TFLOP."""
    config = GLM53.config(widths.glm53(4, dense=0))
    with torch.device("meta"):
        tensors = {
            spec.name: torch.empty(
                spec.shape,
                dtype=torch.promote_types(torch.bfloat16, getattr(torch, spec.dtype or "bool")),
            )
            for spec in GLM53.tensors(config)
        }
        weights = GLM53.weights(config, tensors, Path())
    made = floors.Floors(family="glm53", config=config, weights=weights, dtype="bfloat16")
    assert made.round_bytes([8] * 4, [512]) == pytest.approx(4.2e9, rel=0.1)
    assert made.prompt_operations(0, 8192) == pytest.approx(25e12, rel=0.1)
    DSV41.config(widths.dsv41(8))


def test_a_run_on_the_cpu_tells_every_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture = tmp_path / "found.json", tmp_path / "found.png"
    asked = ["glm53", *SMALL, "--free", "--profile", "--output", str(out), "--plot", str(picture)]
    assert bench_decode.main(asked) == 0
    found = json.loads(out.read_text())
    assert found["holds"]
    figures = found["figures"]
    assert [(one["streams"], one["context"] > 100) for one in figures["rounds"]] == [
        (1, False),
        (3, False),
        (1, True),
    ]
    assert [one["rows"] for one in figures["prompts"]] == [100, 150]
    assert all(one["device"] > 0 and one["moved"] > 0 for one in figures["rounds"])
    assert set(figures["free_rounds"]) == {"1", "3"}
    assert figures["failed"] == {}
    assert picture.stat().st_size > 1000
    # A run that is cut short has told what it had by then.
    told, _, _ = capsys.readouterr().out.partition("rounds of one row a stream")
    for one in figures["rounds"][:2]:
        free = figures["free_rounds"][str(one["streams"])]
        words = f"free, {one['streams']} streams: {free * 1e3:.3f} ms"
        assert f"{words}, exactness {one['device'] / free - 1:+.1%}\n" in told
    free = figures["free_prompts"]["100"]
    price = figures["prompts"][0]["seconds"] / free - 1
    assert f"free, 100 rows: {free * 1e3:.1f} ms, exactness {price:+.1%}\n" in told


def test_a_peers_figures_are_told_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    figures = Figures()
    figures.add_peer({"transformers": "5", "prompt 64": 1234.5, "round 8": 0.0625})
    assert capsys.readouterr().out == (
        "   peer, prompt 64: 1234 rows/s\n   peer, round 8: 62.500 ms\n"
    )
    assert figures.peer_rate(64) == 1234.5


def test_another_family_runs_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_decode.main(["dsv41", *SMALL, "--layers", "6"]) == 0
    assert "rounds of one row a stream" in capsys.readouterr().out


def test_an_engine_whose_promise_does_not_hold_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    monkeypatch.setattr(bench_decode, "holds", lambda engine: {"concurrent = solo": False})
    assert bench_decode.main(["glm53", *SMALL, "--output", str(out)]) == 1
    figures = json.loads(out.read_text())["figures"]
    assert figures["rounds"] == figures["prompts"] == []
    assert "not timed" in figures["failed"]["engine"]


def test_a_peer_that_cannot_run_is_told_as_unmeasured(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    assert bench_decode.main(["glm53", *SMALL, "--peer", "--output", str(out)]) == 1
    found = json.loads(out.read_text())
    assert "transformers has no such model" in found["figures"]["failed"]["peer"]
    assert found["figures"]["rounds"]


def test_the_promises_are_really_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    family, raw = GLM53, widths.tiny_glm53(4)
    flags: dict[str, Any] = {"lanes": 3, "context": 512, "chunk_rows": 256, "window_rows": 1}
    engine = engines.opened(family, raw, "cpu-reference", read(flags, {}), lambda *told: None)
    assert soundness.holds(engine) == {
        "concurrent = solo": True,
        "split = whole": True,
        "twice = once": True,
    }
    whole = engine.round

    def leaking(windows: Any) -> Any:
        flight = whole(windows)
        if len(windows) > 1:
            for stream in engine.streams.values():
                engine.storage.buffers["kda.0"][stream.seat.lane] += 0.5
        return flight

    with torch.inference_mode():
        monkeypatch.setattr(engine, "round", leaking)
        assert not soundness.holds(engine)["concurrent = solo"]


def test_arguments_that_make_no_sense_are_refused() -> None:
    for flags in (["--streams", "0"], ["--prompts", "a"], ["--streams", ""], ["--turns", "0"]):
        with pytest.raises(StartError):
            bench_decode.parse(["glm53", *flags])
    assert bench_decode.main(["glm53", *SMALL, "--backend", "fake"]) == 1


def test_a_burst_is_summed_by_its_slowest_first_token_and_its_rates() -> None:
    one = {"times": [[0.1, 0.2, 0.3], [0.2, 0.3, 0.4]], "hashes": ["a", "b"]}
    slow = {"times": [[0.2, 0.4, 0.6], [0.4, 0.6, 0.8]], "hashes": ["a", "b"]}
    found = bursting.summed([one, slow, one])
    assert found.firsts == (0.2, 0.4, 0.2)
    assert found.slowest_first == 0.2
    assert found.aggregate == pytest.approx(4 / 0.3)
    # Between 0.2 and 0.3 two tokens came, one of each reply.
    assert found.steady == pytest.approx(2 / 0.1)
    with pytest.raises(AssertionError):
        bursting.summed([one, {**one, "hashes": ["a", "c"]}])


def test_an_engine_that_was_served_is_held_by_nothing_once_it_is_let_go() -> None:
    flags = {"lanes": 8, "context": 512, "chunk_rows": 512, "window_rows": 1}
    engine = engines.opened(
        GLM53, widths.tiny_glm53(2), "cpu-reference", read(flags, {}), lambda *told: None
    )
    left = weakref.ref(engine)
    bursting.served(engine, Path(bench_decode.__file__).parents[1] / "families/glm53/tiny", 1)
    del engine
    gc.collect()
    assert left() is None


@pytest.mark.timeout(300)
def test_bursts_over_http_give_the_same_tokens_whatever_the_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Servers are opened anew between the two turns.
    monkeypatch.setattr(bursting, "LIVED", 1)
    out = tmp_path / "found.json"
    asked = ["glm53", "--widths", "tiny", "--backend", "cpu-reference", "--streams", "8"]
    asked += ["--context", "20", "--prompts", "512", "--chunk", "512", "--long", "0", "--reps", "1"]
    assert bench_decode.main([*asked, "--bursts", "--turns", "2", "--output", str(out)]) == 0
    found = json.loads(out.read_text())["figures"]["bursts"]
    assert set(found) == {"unset", "many", "drain", "pack"}
    for kind in ("equal", "different"):
        assert len({tuple(found[arm][kind]["hashes"]) for arm in found}) == 1
        counts = {arm: len(found[arm][kind]["firsts"]) for arm in found}
        assert counts == {"unset": 6, "many": 2, "drain": 6, "pack": 2}
        assert all(min(found[arm][kind]["steadies"]) > 0 for arm in found)


def test_bursts_are_held_beside_those_of_their_own_turn() -> None:
    def bursts(rates: list[float]) -> bursting.Bursts:
        one = (1.0,) * len(rates)
        return bursting.Bursts(firsts=one, aggregates=tuple(rates), steadies=one, hashes=())

    # A machine that is slower for some turns, which neither is to blame for.
    turns = [[100.0, 102.0, 98.0], [60.0, 61.0, 59.0], [90.0, 91.0, 89.0]]
    unset = bursts([rate for turn in turns for rate in turn])
    assert bursting.beside(unset, unset) == 0
    slower = bursts([0.98 * rate for turn in turns for rate in reversed(turn)])
    assert bursting.beside(slower, unset) == pytest.approx(-0.02)
