"""Opening an engine: every start that cannot succeed is one sentence with the numbers in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch import Tensor

from tensorfold.backends.cpu_reference import backend as cpu_reference
from tensorfold.core.engine.room import fit
from tensorfold.core.engine.state import bytes_needed
from tensorfold.core.errors import StartError
from tensorfold.core.ops import SPECS
from tensorfold.core.state_spec import Fixed, PerToken, StateSpec
from tests.cpu.driving import opened, variant

SPEC = StateSpec(
    page=64, entries=(PerToken(name="token", width=10), Fixed(name="lane", shape=(100,)))
)


def needed(lanes: int, context: int) -> int:
    return bytes_needed(SPEC, lanes, lanes * -(-context // 64))


def refusal(lanes: int, context: int, free: int) -> str:
    with pytest.raises(StartError) as refused:
        fit(SPEC, lanes, context, 0, free)
    return str(refused.value)


def test_what_just_fits_is_taken_and_a_byte_less_is_not() -> None:
    fit(SPEC, 8, 1000, 0, needed(8, 1000))
    said = refusal(8, 1000, needed(8, 1000) - 1)
    assert said.startswith(f"8 lanes of 1000 tokens need {needed(8, 1000):,} bytes of state, and ")
    assert f"{needed(8, 1000) - 1:,} are free" in said
    assert said.endswith("--lanes 7 or --context 960 would fit")


@pytest.mark.parametrize("lanes", [1, 2, 8, 33])
@pytest.mark.parametrize("context", [1, 64, 65, 1000, 100_000])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
def test_the_numbers_that_would_fit_do_fit_and_are_the_largest(
    lanes: int, context: int, share: float
) -> None:
    free = int(needed(lanes, context) * share)
    said = refusal(lanes, context, free)
    if found := re.search(r"--lanes (\d+)", said):
        fit(SPEC, int(found[1]), context, 0, free)
        assert needed(int(found[1]) + 1, context) > free
    if found := re.search(r"--context (\d+)", said):
        fit(SPEC, lanes, int(found[1]), 0, free)
        assert needed(lanes, int(found[1]) + 1) > free
    if "no number of lanes fits" in said:
        assert needed(1, context) > free


@pytest.mark.parametrize("free", [0, -5])
def test_where_nothing_fits_it_says_so(free: int) -> None:
    assert refusal(2, 64, free).endswith("0 are free beside the weights: no number of lanes fits")


def test_kept_states_count_when_room_is_measured() -> None:
    fit(SPEC, 1, 64, 1000, needed(1, 64) + 1000)
    with pytest.raises(StartError, match="no number of lanes fits"):
        fit(SPEC, 1, 64, 1001, needed(1, 64) + 1000)


def test_a_small_device_refuses_before_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    # The weights take 3,9 MB in float32; this is room for them and for one lane of 64 tokens.
    monkeypatch.setattr(cpu_reference, "free_bytes", lambda: 4_100_000)
    with pytest.raises(StartError, match=r"8 lanes of 320 tokens need .* would fit"):
        opened()
    monkeypatch.setattr(cpu_reference, "free_bytes", lambda: 0)
    with pytest.raises(StartError, match="0 are free beside the weights: no number of lanes fits"):
        opened(lanes=1, context=64, chunk_rows=64)


@pytest.mark.parametrize("rows", [1, 63, 65, 100])
def test_chunk_rows_off_the_grid_are_refused(rows: int) -> None:
    with pytest.raises(StartError, match=f"--chunk-rows is {rows}, not a multiple of 64"):
        opened(chunk_rows=rows)


def test_a_context_above_the_models_is_refused(tmp_path: Path) -> None:
    folder = variant(tmp_path / "short", {"max_position_embeddings": 256})
    with pytest.raises(StartError, match="--context is 257, more than the 256 tokens"):
        opened(folder, context=257)
    assert opened(folder, context=0, lanes=1, chunk_rows=64).info.context == 256


def test_a_tensor_whose_shape_disagrees_with_the_config_is_named(tmp_path: Path) -> None:
    folder = variant(tmp_path / "misshapen", {"q_lora_rank": 40})
    with pytest.raises(StartError) as refused:
        opened(folder)
    said = str(refused.value)
    assert "q_a_proj.weight" in said or "q_a_layernorm.weight" in said or "q_b_proj" in said
    assert "40" in said
    assert "48" in said


def test_a_tensor_cut_short_is_named(tmp_path: Path) -> None:
    def change(name: str, tensor: Tensor) -> Tensor:
        return tensor[:-1] if name == "lm_head.weight" else tensor

    with pytest.raises(StartError, match=r"lm_head\.weight"):
        opened(variant(tmp_path / "cut", {}, change))


def test_info_says_what_the_engine_is() -> None:
    info = opened(lanes=3, context=192, chunk_rows=128, window_rows=5).info
    assert (info.lanes, info.context, info.chunk_rows, info.window_rows) == (3, 192, 128, 5)
    assert (info.round_rows, info.pack_rows, info.grid, info.passes) == (15, 128, 64, 0)
    assert (info.backend, info.family, info.dtype) == ("cpu-reference", "glm53", "float32")
    assert info.vocab_size == 160
    rows = [name for name in info.checks if name.startswith("rows:")]
    assert len(info.ops) == len(rows) == len(SPECS)
