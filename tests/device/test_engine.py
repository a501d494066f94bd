"""The engine on a GPU, op by op and captured: its arithmetic, its promises, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tensorfold.core.errors import StartError
from tensorfold.tools.decode import soundness
from tensorfold.tools.parity import parity
from tests.device.opening import BACKEND, CAPTURED, EAGER, Opened, names, opened, opened_once

DATA = Path(__file__).parents[1] / "data"
FORMATS = pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def engine_of() -> Iterator[Opened]:
    yield from opened_once()


@names("engine")
def test_the_arithmetic_is_the_goldens(name: str) -> None:
    assert parity(DATA / name, BACKEND, Console()) == 0


@names("engine")
@FORMATS
@pytest.mark.parametrize("flags", [EAGER, CAPTURED], ids=["eager", "captured"])
def test_a_reply_does_not_show_its_company_or_its_pieces(
    name: str, flags: dict[str, Any], dtype: str, engine_of: Opened
) -> None:
    engine = engine_of(name, dtype=dtype, **flags)
    assert all(soundness.holds(engine).values())
    assert engine.info.dtype == dtype
    assert engine.info.checks["sizes:rounds"] is True
    assert engine.info.checks["sizes:prompts"] is True


@names("engine")
@FORMATS
def test_captured_rounds_have_the_bits_of_rounds_run_op_by_op(
    name: str, dtype: str, engine_of: Opened
) -> None:
    eager, captured = (engine_of(name, dtype=dtype, **flags) for flags in (EAGER, CAPTURED))
    prompts = {stream: soundness.prompt_of(eager, stream, 40 + 31 * stream) for stream in range(5)}
    found = [
        soundness.replies(engine, prompts, lambda rows: [rows]) for engine in (eager, captured)
    ]
    assert found[0] == found[1]


def test_lanes_that_do_not_fit_are_refused_with_the_numbers_that_would() -> None:
    with pytest.raises(StartError, match=r"bytes of state.*--lanes \d+ or --context \d+ would fit"):
        opened("glm53", lanes=4096, context=1 << 20)
