"""Bursts at real servers with the bundled model: whatever the fills, the same tokens."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tensorfold.core.errors import StartError
from tensorfold.tools.bench_bursts import ARMS, PROMPTS, STREAMS, judged, measure, parse, serving

TINY = Path(__file__).resolve().parents[2] / "families" / "glm53" / "tiny"
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not any(TINY.glob("*.safetensors")), reason="no bundled weights here"),
]


def test_bursts_reply_with_the_same_tokens_whatever_the_fills(
    tensorfold_command: list[str],
) -> None:
    options = parse(["tiny-glm53", "--runs", "1", "--reps", "2", "--tokens", "8"])
    measured = asyncio.run(measure(options, tensorfold_command))
    for kind, prompts in PROMPTS.items():
        hashes = {burst.hashes for arm in ARMS for burst in measured.of(kind, arm)}
        assert len(hashes) == 1, (kind, hashes)
        # Greedy: equal prompts have equal replies.
        (of_streams,) = hashes
        assert len(of_streams) == STREAMS
        assert len(set(of_streams)) >= 2 or len(set(prompts)) == 1
        for panel in measured.panels[kind]:
            forwards = [forward for turn in panel.turns for forward in turn.forwards]
            assert any(forward.pieces for forward in forwards), panel.title
            assert any(len(forward.windows) > 1 for forward in forwards), panel.title
    checks = judged(measured, options).checks
    assert all(check.holds for check in checks if "same tokens" in check.name)


@pytest.mark.asyncio
async def test_a_server_that_closes_its_words_before_it_ends_is_ended_and_waited_for(
    tmp_path: Path,
) -> None:
    told = tmp_path / "pid"
    script = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); "
    command = (sys.executable, "-c", script + "os.close(2); time.sleep(100)")
    with pytest.raises(StartError, match="did not start"):
        async with serving(command, (), tmp_path / "trace"):
            raise AssertionError("it started")
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
