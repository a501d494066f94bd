"""The lane timeline is a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorfold.core.errors import StartError
from tensorfold.tools.sim.arms import SMOOTH
from tensorfold.tools.sim.beside import short_story
from tensorfold.tools.sim.costs import fitted
from tensorfold.tools.sim.drawing import save
from tensorfold.tools.sim.report import Panel

pytest.importorskip("matplotlib")


def test_turns_become_a_small_png(tmp_path: Path) -> None:
    story = short_story(SMOOTH, fitted(), rows=2000, live=True, moments=(0.5,), tokens=40)
    path = tmp_path / "lanes.png"
    save([Panel(title="smooth", turns=story.turns)], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 100_000


def test_nothing_to_draw_is_told() -> None:
    with pytest.raises(StartError, match="nothing to draw"):
        save([Panel(title="empty", turns=())], Path("never.png"))


def test_a_picture_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    story = short_story(SMOOTH, fitted(), rows=100, live=False, moments=(0.5,))
    with pytest.raises(StartError, match="cannot be written"):
        save([Panel(title="smooth", turns=story.turns)], tmp_path / "none" / "lanes.png")
