"""Ranks of an engine whose format is narrower than its sums: what each has of a sum is not rounded
before the whole is there."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.core.backend_api import Place
from tensorfold.core.engine.group import summed
from tensorfold.core.family_api import Family
from tensorfold.core.ops.linear_parts import tree
from tensorfold.core.share import Share
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tests.cpu.ranks.running import led, on_ranks
from tests.cpu.ranks.scenes import company
from tests.cpu.test_formats import opened

FOLDERS = Path(__file__).parents[3] / "families"
FAMILIES: tuple[Family, ...] = (GLM53, DSV41)
SIZES = {"lanes": 8, "window_rows": 8, "threads": 1, "drafts": 3, "copies": False}
pytestmark = pytest.mark.timeout(240)


def played(place: Place | None, family: Family) -> tuple[Any, str]:
    engine = opened(family, folder=FOLDERS / family.name / "tiny", place=place, **SIZES)
    return led(place, engine, lambda first: company(first, (2,))), engine.info.identity


@functools.cache
def play(count: int, name: str) -> list[tuple[Any, str]]:
    (family,) = (family for family in FAMILIES if family.name == name)
    return on_ranks(count, played, family, seconds=200)


@pytest.mark.parametrize(("name", "count"), [("glm53", 4), ("dsv41", 2)])
def test_in_bfloat16_ranks_give_the_bits_and_the_identity_of_one(name: str, count: int) -> None:
    (one, alone), *_ = play(1, name)
    (found, identity), *_ = play(count, name)
    assert found == one
    assert identity == alone


class Apart:
    """A `group.Group` in which other ranks have given parts."""

    share = Share(ranks=4)
    checks: Mapping[str, bool | None] = {}

    def __init__(self, others: Tensor) -> None:
        self.others = others

    def gather(self, part: Tensor) -> Tensor:
        return torch.cat([part[None], self.others])

    def total(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        return tree(self.gather(part)).to(dtype)

    def exchange(self, told: bytes) -> list[bytes]:
        raise AssertionError(told)

    def abort(self) -> None:
        raise AssertionError


def test_a_sum_over_ranks_has_the_format_that_one_rank_gives_it_and_is_rounded_once() -> None:
    # Each part is lost beside the first one if it is rounded alone.
    parts = torch.full((4, 2, 2), 2.0**-9)
    parts[0] = 1.0
    call = summed(lambda x, w: parts[0], Apart(parts[1:]), lambda x, w: x.dtype)
    total = call(torch.zeros(2, 2, dtype=torch.bfloat16), None)
    assert total.dtype == torch.bfloat16
    assert (total == 1 + 2.0**-7).all()
