"""The engine compiled, which takes long to start: its name puts this file behind the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensorfold.tools.decode import soundness
from tests.device.opening import COMPILED, Opened, names, opened_once

pytestmark = [
    pytest.mark.timeout(300),
    # The compiler imports a part of torch that torch itself has deprecated.
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def engine_of() -> Iterator[Opened]:
    yield from opened_once()


@names("compiled")
def test_a_compiled_reply_does_not_show_its_company_or_its_pieces(
    name: str, engine_of: Opened
) -> None:
    engine = engine_of(name, dtype="bfloat16", **COMPILED)
    assert all(soundness.holds(engine).values())
    assert engine.info.checks["sizes:rounds"] is True
    assert engine.info.checks["sizes:prompts"] is True
