"""`tensorfold selfcheck`: sound servers hold, doubles that break a promise are told, by name."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorfold.backends.fake.engine import FakeEngine, FakeFlight
from tensorfold.backends.fake.options import Call, FakeOptions, Trouble
from tensorfold.core.engine_api import Landed, Window
from tensorfold.core.errors import StartError
from tensorfold.core.keyed import token_sha256
from tensorfold.core.server.app import serving
from tensorfold.core.settings import Settings
from tensorfold.tools import selfcheck
from tensorfold.tools.asking import Answer, Ask, NoReply, read_answer
from tests.null.calling import fake_text

TINY = Path(__file__).resolve().parents[2] / "families" / "glm53" / "tiny"
TOKENS = 16


def options(**changed: Any) -> FakeOptions:
    """A fake whose rounds take long enough for requests to meet."""

    def cost(call: Call) -> float:
        return 0.002 if call.kind == "round.land" else 0.0

    return FakeOptions(cost=cost, wait=time.sleep, **changed)


class Leaky(FakeEngine):
    """Changes what it lands of a round by the windows that are in it."""

    def __init__(
        self, options: FakeOptions, leak: Callable[[Sequence[Window], Landed], Landed]
    ) -> None:
        super().__init__(options)
        self.leak = leak

    def round(self, windows: Sequence[Window]) -> FakeFlight[Landed]:
        flight = super().round(windows)

        def land() -> list[Landed]:
            found = [self.leak(windows, landed) for landed in flight.land()]
            for landed in found:
                self.streams[landed.stream].pending = landed.tokens[-1]
            return found

        return FakeFlight(land)


def other_last(landed: Landed) -> Landed:
    changed = (landed.tokens[-1] + 1) % 90
    logprobs = (*landed.logprobs[:-1], replace(landed.logprobs[-1], token=changed))
    return replace(landed, tokens=(*landed.tokens[:-1], changed), logprobs=logprobs)


def leaks_tokens(windows: Sequence[Window], landed: Landed) -> Landed:
    return other_last(landed) if len(windows) > 4 else landed


def leaks_logprobs(windows: Sequence[Window], landed: Landed) -> Landed:
    if len(windows) < 2:
        return landed
    moved = tuple(replace(entry, logprob=entry.logprob - 2.0**-20) for entry in landed.logprobs)
    return replace(landed, logprobs=moved)


def leaks_drafts(windows: Sequence[Window], landed: Landed) -> Landed:
    return other_last(landed) if any(len(window.tokens) == 3 for window in windows) else landed


def found_of(engine: FakeEngine) -> dict[str, selfcheck.Promise]:
    async def run() -> list[selfcheck.Promise]:
        settings = Settings(port=0)
        async with serving(
            engine=engine, text=fake_text(), settings=settings, model="fake"
        ) as here:
            return await selfcheck.check_running(here.address, TOKENS, 20)

    return {promise.name: promise for promise in asyncio.run(run())}


def test_a_sound_engine_holds_and_what_was_not_looked_at_is_said() -> None:
    found = found_of(FakeEngine(options(drafts=3)))
    states = {name: promise.state for name, promise in found.items()}
    assert states == {
        "concurrent = solo": "holds",
        "drafted = undrafted": "holds",
        "resumed = fresh": "not tested",
        "split = whole": "not tested",
        "after = before": "not tested",
        "ranks = one": "not tested",
    }
    assert found["concurrent = solo"].compared == sum(range(1, 9))


@pytest.mark.parametrize("leak", [leaks_tokens, leaks_logprobs])
def test_an_engine_whose_replies_show_their_company_is_told(
    leak: Callable[[Sequence[Window], Landed], Landed],
) -> None:
    found = found_of(Leaky(options(), leak))
    assert found["concurrent = solo"].state == "BROKEN"
    assert selfcheck.told(list(found.values()), None) == 1


def test_an_engine_whose_drafts_reach_its_tokens_is_told() -> None:
    found = found_of(Leaky(options(drafts=2, lanes=1), leaks_drafts))
    assert found["drafted = undrafted"].state == "BROKEN"


def test_replies_that_never_shared_a_round_do_not_count() -> None:
    found = found_of(FakeEngine(options(room_lanes=1)))
    promise = found["concurrent = solo"]
    assert promise.state == "FAILED"
    assert "no round was shared at 2, 3, 4, 5, 6, 7, 8 at once" in promise.failed[-1]


def test_a_reply_that_failed_is_no_equal_reply(capsys: pytest.CaptureFixture[str]) -> None:
    trouble = Trouble(kind="round.land", call=40, fault="a fault of the script")
    found = found_of(FakeEngine(options(troubles=(trouble,))))
    assert found["concurrent = solo"].state == "FAILED"
    assert selfcheck.told(list(found.values()), None) == 1
    assert "a fault of the script" in capsys.readouterr().out


def test_one_lane_leaves_company_untested() -> None:
    found = found_of(FakeEngine(options(lanes=1)))
    assert found["concurrent = solo"].state == "not tested"
    # Nothing at all was compared: no success.
    assert selfcheck.told(list(found.values()), None) == 1


# -- without a server --------------------------------------------------------------------------


def body_of(tokens: list[int], **changed: Any) -> str:
    receipt = {"engine": "e", "cached": 0, "rounds": 1, "drafted": 0, "accepted": 0}
    receipt["token_sha256"] = changed.get("sha256", token_sha256(tokens))
    choice = {
        "token_ids": tokens,
        "logprobs": {"token_logprobs": [-1.0] * len(tokens), "top_logprobs": []},
    }
    usage = {"prompt_tokens": 3}
    return json.dumps({"choices": [choice], "tensorfold": receipt, "usage": usage})


ASK = Ask(prompt="p", tokens=2, temperature=0, seed=0)


def test_a_reply_is_held_to_its_receipt_and_length() -> None:
    assert read_answer(body_of([4, 5]), ASK).tokens == (4, 5)
    for text in (body_of([4]), body_of([4, 5], sha256="0"), "{}", "not json"):
        with pytest.raises(NoReply):
            read_answer(text, ASK)


class Scripted:
    """A server whose answers are written down."""

    def __init__(self, answers: Sequence[Answer], **info: Any) -> None:
        self.info = {"context": 4096, "grid": 16, "lanes": 2, "ranks": 1, **info}
        self.answers = iter(answers)

    async def ask(self, ask: Ask, *, draft: bool = True) -> Answer:
        return next(self.answers)

    async def together(self, asks: Sequence[Ask]) -> list[Answer]:
        return [await self.ask(ask) for ask in asks]


def answer(token: int, *, cached: int = 0, rows: int = 40) -> Answer:
    return Answer(
        tokens=(token,),
        logprobs="",
        engine="e",
        rows=rows,
        cached=cached,
        rounds=1,
        drafted=0,
        accepted=0,
    )


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ([answer(1), answer(1), answer(1, cached=32)], "holds"),
        ([answer(1), answer(1), answer(1)], "not tested"),
        ([answer(1), answer(1), answer(2, cached=32)], "BROKEN"),
        ([answer(1), answer(2), answer(1, cached=32)], "BROKEN"),
        ([answer(1, cached=16), answer(1), answer(1)], "FAILED"),
    ],
)
def test_cold_cold_warm(answers: list[Answer], state: str) -> None:
    promise = selfcheck.promises()["resumed = fresh"]
    asyncio.run(selfcheck.repeated(Scripted(answers), TOKENS, promise))  # type: ignore[arg-type]
    assert promise.state == state


@pytest.mark.parametrize(
    ("pieces", "info", "state"),
    [
        ([1, 2, 1, 2], {}, "holds"),
        ([1, 2, 1, 3], {}, "BROKEN"),
        ([1, 2, 1, 2], {"chunk_rows": 512}, "FAILED"),
        ([1, 2, 1, 2], {"grid": 64, "chunk_rows": 64}, "not tested"),
    ],
)
def test_pieces_are_compared_with_whole_prompts(
    pieces: list[int], info: dict[str, Any], state: str
) -> None:
    solo = selfcheck.Solo(asks=[ASK, ASK], answers=[answer(1), answer(2)])
    server = Scripted(
        [answer(token) for token in pieces], **({"fill_chunks": 1, "chunk_rows": 16} | info)
    )
    promise = selfcheck.promises()["split = whole"]
    asyncio.run(selfcheck.in_pieces(server, solo, promise))  # type: ignore[arg-type]
    assert promise.state == state


def test_pieces_lie_on_the_grid_and_are_never_of_one_row() -> None:
    for grid in (1, 2, 16, 17, 64):
        piece = selfcheck.piece_rows({"grid": grid})
        assert piece >= 16
        assert piece % grid == 0


def test_flags_go_to_the_servers_and_those_it_sets_are_refused() -> None:
    given = {"lanes": "4", "compile": True, "admin": False}
    assert selfcheck.server_flags(given) == ["--lanes", "4", "--compile", "--no-admin"]
    for name in ("fill_chunks", "port"):
        with pytest.raises(StartError, match="selfcheck"):
            selfcheck.server_flags({name: "1"})
    with pytest.raises(StartError, match="no TensorFold answers"):
        selfcheck.main(["http://127.0.0.1:9"])
    with pytest.raises(StartError, match="starts itself"):
        selfcheck.main(["http://127.0.0.1:9", "--lanes", "2"])


# -- its own servers ---------------------------------------------------------------------------


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("model", "flags", "held"),
    [
        (
            "fake",
            ["--backend", "fake", "--lanes", "3", "--no-copies"],
            {"concurrent = solo", "split = whole"},
        ),
        pytest.param(
            "tiny-glm53",
            ["--drafts", "2", "--lanes", "3"],
            {"concurrent = solo", "drafted = undrafted", "split = whole"},
            marks=pytest.mark.skipif(
                not any(TINY.glob("*.safetensors")), reason="no bundled weights here"
            ),
        ),
    ],
)
def test_servers_of_its_own_hold(
    tensorfold_command: list[str], model: str, flags: list[str], held: set[str]
) -> None:
    # The fake is so quick that only long replies meet.
    tokens = 400 if model == "fake" else TOKENS
    found = asyncio.run(selfcheck.check_folder(model, flags, tokens, 60, tensorfold_command))
    assert {promise.name for promise in found if promise.state == "holds"} == held
    assert not any(promise.broken or promise.failed for promise in found)


def test_a_server_that_does_not_start_is_told(tensorfold_command: list[str]) -> None:
    with pytest.raises(StartError, match="did not start"):
        asyncio.run(selfcheck.check_folder("no-such", [], TOKENS, 20, tensorfold_command))
