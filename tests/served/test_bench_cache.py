"""The cache bench: what it measures is what it asked, and nothing that failed counts as equal."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tensorfold.backends.fake.options import FakeOptions
from tensorfold.core.errors import StartError
from tensorfold.tools.bench_cache import (
    CONCURRENT,
    FIRST,
    REPEATED,
    Row,
    draw,
    judged,
    measure,
    parse,
)
from tensorfold.tools.sim.report import document
from tests.null.calling import server

GOOD = Row(phase=FIRST, prompt=9, made=4, sha256="a" * 64, ttft_s=0.5, decode=7.0)


def options(*flags: str, base: str = "http://x", model: str = "fake") -> argparse.Namespace:
    return parse([base, model, "--prompt-tokens", "40", "--tokens", "6", *flags])


@pytest.mark.asyncio
async def test_every_request_is_measured_and_told_apart() -> None:
    async with server() as client:
        base = client.here.address
        asked = options("--streams", "3", "--repeats", "2", "--require-cold", base=base)
        rows = await measure(asked)
    assert [one.phase for one in rows] == [FIRST, REPEATED, REPEATED, *[CONCURRENT] * 3]
    assert all(one.failed is None for one in rows), rows
    assert {(one.prompt, one.made, one.cached, one.kind) for one in rows} == {(40, 6, 0, "cold")}
    assert len({one.sha256 for one in rows}) == 1
    assert all(one.ttft_s > one.prefill_s > 0 for one in rows)
    assert judged(rows, asked).holds
    told = json.dumps(document(judged(rows, asked)))
    assert base not in told


@pytest.mark.asyncio
async def test_a_very_long_prompt_is_measured() -> None:
    rows = 1 << 20
    async with server(FakeOptions(context=rows + 10)) as client:
        asked = options(
            "--prompt-tokens",
            f"{rows}",
            "--repeats",
            "0",
            "--streams",
            "0",
            base=client.here.address,
        )
        (row,) = await measure(asked)
    assert (row.failed, row.prompt, row.made) == (None, rows, 6)


@pytest.mark.asyncio
async def test_a_request_that_fails_is_no_reply() -> None:
    async with server() as client:
        asked = options(base=client.here.address, model="another")
        rows = await measure(asked)
    assert all("404" in (one.failed or "") for one in rows)
    outcome = judged(rows, asked)
    assert not outcome.holds
    assert not any(check.holds for check in outcome.checks)


@pytest.mark.parametrize(
    ("flags", "rows", "holds"),
    [
        ([], [GOOD, GOOD], True),
        ([], [GOOD, Row(phase=REPEATED, failed="503")], False),
        ([], [GOOD, Row(phase=REPEATED, prompt=9, made=4, sha256="b" * 64)], False),
        (["--require-cold"], [GOOD], True),
        (["--require-cold"], [Row(phase=FIRST, prompt=9, made=4, cached=4, sha256="a")], False),
        (["--require-reuse"], [GOOD], False),
        (["--require-reuse"], [GOOD, Row(phase=REPEATED, cached=8, sha256="a" * 64)], True),
        (["--require-reuse"], [GOOD, Row(phase=REPEATED, sha256="a" * 64)], False),
        (["--expected-prompt-tokens", "9"], [GOOD], True),
        (["--expected-prompt-tokens", "10"], [GOOD], False),
    ],
)
def test_what_was_required_is_what_is_judged(
    flags: list[str], rows: list[Row], holds: bool
) -> None:
    assert judged(rows, options(*flags)).holds is holds


def test_a_rate_that_cannot_be_told_is_unmeasured() -> None:
    one = Row(phase=FIRST, made=1, sha256="a")
    assert one.json()["decode_tok_s"] == "unmeasured"
    cells = judged([one, Row(phase=REPEATED, failed="gone")], options()).tables[0].rows
    assert cells[0][-1] == "unmeasured"
    assert set(cells[1][1:]) == {"unmeasured"}


def test_a_prompt_file_that_cannot_be_read_and_a_server_that_is_not_there_are_refused(
    tmp_path: Path,
) -> None:
    import asyncio

    with pytest.raises(StartError, match="no TensorFold answers"):
        asyncio.run(measure(options(base="http://127.0.0.1:1")))
    with pytest.raises(StartError, match="at least 1"):
        options("--tokens", "0")


def test_the_picture_has_a_bar_a_reply(tmp_path: Path) -> None:
    draw([GOOD, Row(phase=REPEATED, failed="gone")], tmp_path / "cache.png")
    assert (tmp_path / "cache.png").read_bytes().startswith(b"\x89PNG")
