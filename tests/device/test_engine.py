"""The engine on a GPU: its arithmetic, its promises captured and compiled, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.core.settings import read
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tensorfold.tools import widths
from tensorfold.tools.decode import engines, soundness
from tensorfold.tools.parity import parity

DATA = Path(__file__).parents[1] / "data"
BACKEND = "cuda-triton"
MADE = {
    "glm53": (GLM53, widths.tiny_glm53(4)),
    "dsv41": (DSV41, widths.tiny_dsv41(6)),
}
pytestmark = pytest.mark.timeout(300)


def opened(name: str, **flags: Any) -> TorchEngine:
    family, raw = MADE[name]
    sizes = {"lanes": 8, "context": 1024, "chunk_rows": 256, "window_rows": 1, **flags}
    return engines.opened(family, raw, BACKEND, read(sizes, {}), lambda *told: None)


@pytest.mark.parametrize("name", MADE)
def test_the_arithmetic_is_the_goldens(name: str) -> None:
    assert parity(DATA / name, BACKEND, Console()) == 0


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("flags", [{"eager": True}, {"compile": False}, {}], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_reply_does_not_show_its_company_or_its_pieces(
    name: str, flags: dict[str, bool], dtype: str
) -> None:
    engine = opened(name, dtype=dtype, **flags)
    assert all(soundness.holds(engine).values())
    assert engine.info.dtype == dtype
    assert engine.info.checks["sizes:rounds"] is True
    assert engine.info.checks["sizes:prompts"] is True


@pytest.mark.parametrize("name", MADE)
def test_captured_rounds_have_the_bits_of_rounds_run_op_by_op(name: str) -> None:
    eager, captured = opened(name, eager=True), opened(name, compile=False)
    prompts = {stream: soundness.prompt_of(eager, stream, 40 + 31 * stream) for stream in range(5)}
    found = [
        soundness.replies(engine, prompts, lambda rows: [rows]) for engine in (eager, captured)
    ]
    assert found[0] == found[1]


def test_lanes_that_do_not_fit_are_refused_with_the_numbers_that_would() -> None:
    with pytest.raises(StartError, match=r"bytes of state.*--lanes \d+ or --context \d+ would fit"):
        opened("glm53", lanes=4096, context=1 << 20)
