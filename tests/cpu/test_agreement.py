"""The check of sizes at load: a sound model agrees with itself, and one that follows a forward's
size is told, with the size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine.agreement import Found, prompt_sizes, round_sizes, sizes_agree
from tensorfold.core.engine.packing import FEW
from tensorfold.core.engine.probe import WHOLE, Sizes
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.core.share import Share
from tests.cpu import driving
from tests.cpu.dsv41 import engines

OPENED: dict[str, Callable[[], TorchEngine]] = {
    "glm53": driving.opened,
    "dsv41": lambda: engines.opened("plain"),
}


class Following:
    """A model whose rows carry the size of their forward, where `hit` says so."""

    def __init__(self, model: Any, hit: Callable[[str, int], bool]) -> None:
        self.model, self.hit = model, hit

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def run(self, kind: str, rows: Any) -> Tensor:
        hidden_RD: Tensor = getattr(self.model, kind)(rows)
        off = 2.0**-20 if self.hit(kind, rows.ids_R.shape[0]) else 0.0
        return hidden_RD + off

    def prompt(self, rows: Any) -> Tensor:
        return self.run("prompt", rows)

    def window(self, rows: Any) -> Tensor:
        return self.run("window", rows)


def found_of(engine: TorchEngine, model: Any, share: Share = WHOLE) -> Found:
    info = engine.info
    sizes = Sizes(
        tile=engine.tile,
        context=info.context,
        vocab_size=info.vocab_size,
        window_rows=info.window_rows,
        shortcut=True,
        share=share,
    )
    with torch.inference_mode():
        return sizes_agree(model, engine.storage, sizes, most_rows=32, most_prompt=200)


@pytest.mark.parametrize("name", OPENED)
def test_a_sound_model_agrees_and_leaves_nothing_behind(name: str) -> None:
    engine = OPENED[name]()
    free = (list(engine.storage.free_lanes), sorted(engine.storage.free_pages))
    found = found_of(engine, engine.model)
    assert found == Found((), ())
    assert found.checks() == {"sizes:rounds": True, "sizes:prompts": True}
    assert (sorted(engine.storage.free_lanes), sorted(engine.storage.free_pages)) == (
        sorted(free[0]),
        free[1],
    )


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("rows", [4, 8, 32])
def test_a_round_of_one_size_that_differs_is_named(name: str, rows: int) -> None:
    engine = OPENED[name]()
    model = Following(engine.model, lambda kind, size: kind == "window" and size == rows)
    wanted = (rows,) if rows > 4 else (8, 16, 32)
    assert found_of(engine, model).rounds == wanted


def test_a_prompt_of_one_size_that_differs_is_named() -> None:
    engine = driving.opened()
    model = Following(engine.model, lambda kind, size: kind == "prompt" and size == 128)
    found = found_of(engine, model)
    # 65 rows are rounded up to as many.
    assert (found.rounds, found.prompts) == ((), (128, 65))
    assert found.words() == "prompts of 128, 65 rows"
    assert found.checks()["sizes:prompts"] is False


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("part", ["row", "state"])
def test_a_prompt_that_padding_changes_is_named(name: str, part: str) -> None:
    """In its rows, or in what it leaves, beside streams that have no rows."""
    engine = OPENED[name]()
    storage = engine.storage

    class Disturbed(Following):
        def prompt(self, rows: Any) -> Tensor:
            hidden_RD = super().prompt(rows)
            if len(rows.lane_B) > 1:
                for buffer in storage.per_lane() if part == "state" else ():
                    buffer[rows.lane_B[0]] += 1
            return hidden_RD

        def run(self, kind: str, rows: Any) -> Tensor:
            self.hit = lambda kind, size: part == "row" and len(rows.lane_B) > 1
            return super().run(kind, rows)

    found = found_of(engine, Disturbed(engine.model, lambda kind, size: False))
    assert found.prompts == tuple(
        size for size in prompt_sizes(storage.spec.page, 200) if size <= FEW
    )


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("kind", ["prompt", "window"])
def test_a_prompt_that_differs_when_not_all_of_it_is_read_is_named(name: str, kind: str) -> None:
    """In the row before its end, or in what it leaves to the row behind it."""
    engine = OPENED[name]()
    short: list[bool] = [False]

    class Leaving(Following):
        def prompt(self, rows: Any) -> Tensor:
            short[0] = rows.reads is not None
            return super().prompt(rows)

    model = Leaving(engine.model, lambda of, size: of == kind and short[0])
    assert found_of(engine, model) == Found((), (200,))


@pytest.mark.parametrize("name", OPENED)
def test_a_chunk_that_differs_where_ranks_split_its_index_is_named(name: str) -> None:
    """By how it is split; an engine of one rank is not asked."""
    engine = OPENED[name]()
    shares: list[str] = []

    class Split(Following):
        def prompt(self, rows: Any) -> Tensor:
            shares.append(rows.split.shares if rows.split else "")
            # Of one rank alone nothing is gathered.
            return super().prompt(rows._replace(split=None))

    model = Split(engine.model, lambda kind, size: shares[-1:] == ["rows"])
    assert found_of(engine, model).splits is None
    assert set(shares) == {""}
    found = found_of(engine, model, Share(rank=1, ranks=2))
    assert found == Found((), (), ("rows",))
    assert found.words() == "chunks whose index is split by rows"
    assert found.checks()["sizes:splits"] is False
    assert {"cost", "rows"} < set(shares)


@pytest.mark.parametrize(("lanes", "window_rows"), [(1, 1), (1, 4), (2, 8), (3, 2)])
@pytest.mark.parametrize("name", ["glm53", "dsv41"])
def test_small_engines_are_looked_at_too(name: str, lanes: int, window_rows: int) -> None:
    sizes = {"lanes": lanes, "window_rows": window_rows, "context": 64, "chunk_rows": 64}
    engine = driving.opened(**sizes) if name == "glm53" else engines.opened("plain", **sizes)
    widths: list[int] = []

    def widest(kind: str, rows: Any) -> bool:
        return False

    class Watching(Following):
        def window(self, rows: Any) -> Tensor:
            widths.append(rows.rows_BW.shape[1])
            return super().window(rows)

    assert found_of(engine, Watching(engine.model, widest)) == Found((), ())
    assert max(widths, default=1) <= window_rows


def test_the_sizes_that_are_looked_at() -> None:
    assert round_sizes(64) == [2, 4, 8, 16, 32, 64]
    assert round_sizes(40) == [2, 4, 8, 16, 32]
    assert round_sizes(1) == [2]
    assert prompt_sizes(64, 512) == [512, 1, 63, 64, 65, 128, 500]
    assert prompt_sizes(1, 8) == [8, 1, 2]


def test_a_compiled_engine_whose_sizes_disagree_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tensorfold.core.engine import open_engine

    class Loud:
        agree = staticmethod(lambda *args, **sizes: Found((8,), (1, 64)))

    class Sizeless:
        lanes, window_rows, chunk_rows = 4, 2, 64

    monkeypatch.setattr(open_engine, "sizes_of", lambda *args: None)
    with pytest.raises(StartError, match="rounds of 8 rows and prompts of 1, 64 rows"):
        open_engine.agreed(Sizeless, Loud, None, None)  # type: ignore[arg-type]
