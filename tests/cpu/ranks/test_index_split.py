"""A split index changes no byte: tokens, logits and every state are those of a whole one, on every
rank; and what would change one is told."""

from __future__ import annotations

import functools
import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorfold.core.backend_api import Place
from tensorfold.core.engine import prompting
from tensorfold.core.ops.pick_tokens import list_of, list_width, picks_of, reference
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53 import attention
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tensorfold.tools import split_check
from tensorfold.tools.split_scenes import LANES, SCALED, WINDOW, Case, Sizes, check, played_whole
from tests.cpu.driving import CKPT
from tests.cpu.ranks.running import on_ranks, opened_at
from tests.cpu.ranks.test_dsv41 import wider_checkpoint

# By model: its family, its arithmetic, and its scenes.
MODELS = {
    "glm53": (GLM53, "", SCALED),
    "dsv41": (DSV41, "plain", Sizes(64, 64, (166, 130, 133, 128))),
    "dsv41 faithful": (DSV41, "faithful", Sizes(64, 64, (166, 130, 133, 128))),
}
RUNS = [("glm53", 2), ("glm53", 3), ("dsv41", 2), ("dsv41 faithful", 3)]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wider_checkpoint(tmp_path_factory.mktemp("wider"))


def played(place: Place | None, model: str, folder: Path) -> list[Case] | dict[str, str]:
    family, numerics, sizes = MODELS[model]
    engine = opened_at(
        place,
        CKPT if family is GLM53 else folder,
        family,
        numerics=numerics,
        lanes=LANES,
        context=sizes.context,
        chunk_rows=sizes.chunk,
        window_rows=WINDOW,
    )
    return check(engine, sizes) if place else played_whole(engine, sizes)


@functools.cache
def play(model: str, count: int, folder: Path) -> list[Any]:
    return on_ranks(count, played, model, folder)


@pytest.mark.parametrize(("model", "count"), RUNS)
def test_tokens_logits_and_every_state_are_those_of_a_whole_index(
    model: str, count: int, folder: Path
) -> None:
    prompts = MODELS[model][2].prompts
    for cases in play(model, count, folder):
        assert len(cases) == 2 * (len(prompts) + 3)
        for case in cases:
            assert case.broken == (), case.words()
            assert case.shared, case.words()


@pytest.mark.parametrize("model", ["glm53", "dsv41"])
def test_two_ranks_with_a_split_index_reply_as_one_without(model: str, folder: Path) -> None:
    (one,) = play(model, 1, folder)
    for case in play(model, 2, folder)[0]:
        assert case.proof == one[case.scene], case.words()


SMALL = ["--ranks", "2", "--prompts", "130,133", "--chunk-rows", "64", "--position", "64"]


def spoiled(place: Place, how: str) -> tuple[int, str]:
    """The check of an engine whose split is at fault: its status, and what it prints."""
    if how == "unsplit":
        prompting.row_split = lambda *given: None  # type: ignore[assignment]
    elif place.share.rank == 1:
        attention.picks_of = lambda *given: torch.zeros_like(picks_of(*given))  # type: ignore[assignment]
    options = split_check.parse([str(CKPT), *SMALL])
    with redirect_stdout(io.StringIO()) as said:
        code = split_check.checked(options, split_check.sizes_of(options), place, lambda: None)
    return code, said.getvalue()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("other picks", "by cost: BROKEN: rank 0: what was told of stream 1; rank 0: state kda.2"),
        ("unsplit", "BROKEN: rank 0: 0 of 4 indexes were shared; rank 1: 0 of 4 indexes were"),
    ],
)
def test_the_check_tells_picks_that_are_others_and_an_index_that_is_not_split(
    how: str, words: str
) -> None:
    (code, said), (other, nothing) = on_ranks(2, spoiled, how)
    assert (code, other, nothing) == (1, 1, "")
    assert words in said
    assert said.splitlines()[-1] == "ckpt on cpu-reference, 2 ranks: 0 of 10 cases hold"


@pytest.mark.parametrize("top", [4, 64])
@pytest.mark.parametrize("pool", [1, 4])
def test_picks_hold_all_that_a_list_does(top: int, pool: int) -> None:
    generator = torch.Generator().manual_seed(top)
    page, pages, width = 64, 5, 300
    position_R = torch.randint(0, width, (70,), generator=generator)
    position_R[:6] = torch.tensor([0, 1, 2, 3, 4, width - 1])
    list_RK = reference(
        torch.randn(70, 2, 8, generator=generator),
        torch.rand(70, 2, generator=generator),
        torch.randn(pages * page // pool, 8, generator=generator),
        torch.arange(pages)[None],
        torch.zeros(70, dtype=torch.int64),
        position_R,
        top,
        pool,
        page,
        width,
    )
    picks_RP = picks_of(list_RK, position_R, top, pool)
    assert picks_RP.shape == (70, top)
    back = list_of(picks_RP, position_R, pool, list_width(top, pool, width))
    assert torch.equal(back, list_RK)
