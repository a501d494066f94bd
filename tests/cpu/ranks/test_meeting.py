"""Ranks that are not alike refuse to start, every one of them, and the difference is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.core.backend_api import Place
from tensorfold.core.engine import meeting
from tensorfold.core.errors import StartError
from tests.cpu.driving import CKPT, variant
from tests.cpu.ranks.running import on_ranks, opened_at


def refused(place: Place, folders: list[Path], flags: list[dict[str, Any]], version: str) -> str:
    if version and place.share.rank == 1:
        meeting.VERSION = version
    try:
        opened_at(place, folders[place.share.rank], **flags[place.share.rank])
    except StartError as error:
        return str(error)
    return ""


def words(
    folders: list[Path] | None = None,
    flags: list[dict[str, Any]] | None = None,
    version: str = "",
) -> list[str]:
    """What each of two ranks says at its start."""
    found: list[str] = on_ranks(2, refused, folders or [CKPT, CKPT], flags or [{}, {}], version)
    return found


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"lanes": 4}, "rank 1 has --lanes 4, and rank 0 has 8"),
        ({"drafts": 2}, "rank 1 has --drafts 2, and rank 0 has 0"),
        ({"threads": 2}, "rank 1 has --threads 2, and rank 0 has 1"),
    ],
)
def test_another_setting_of_the_engine(flags: dict[str, Any], said: str) -> None:
    for told in words(flags=[{}, flags]):
        assert told.startswith(said), told


def test_another_version() -> None:
    for told in words(version="0.0"):
        assert told.startswith("rank 1 has version '0.0', and rank 0 has "), told


def test_other_weights_of_the_same_shapes(tmp_path: Path) -> None:
    def change(name: str, tensor: Tensor) -> Tensor:
        return (
            tensor + torch.finfo(torch.float32).eps if name.endswith("lm_head.weight") else tensor
        )

    folders = [variant(tmp_path / "one", {}), variant(tmp_path / "two", {}, change)]
    for told in words(folders=folders):
        assert re.match(r"rank 1 has model\.safetensors '[0-9a-f ]+', and rank 0 has", told), told


def test_another_config(tmp_path: Path) -> None:
    folders = [variant(tmp_path / "one", {}), variant(tmp_path / "two", {"swiglu_limit": 9.0})]
    for told in words(folders=folders):
        assert told.startswith("rank 1 has config.json '"), told


def test_what_one_rank_cannot_load_is_told_by_all(tmp_path: Path) -> None:
    empty = variant(tmp_path / "empty", {})
    (empty / "model.safetensors").unlink()
    first, second = words(folders=[CKPT, empty])
    assert "holds neither model.safetensors" in second
    assert first == f"rank 1: {second}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({"n_routed_experts": 12}, "--ranks is 2, and n_routed_experts of 12 cannot be cut"),
        ({"intermediate_size": 90}, "--ranks is 2, and intermediate_size of 90 cannot be cut"),
    ],
)
def test_a_model_that_cannot_be_cut(tmp_path: Path, text: dict[str, Any], said: str) -> None:
    folder = variant(tmp_path / "model", text)
    for told in words(folders=[folder, folder]):
        assert told.startswith(said) or told.startswith(f"rank 0: {said}"), told


def test_a_rank_that_ends_before_all_are_ready() -> None:
    (told,) = [said for said in on_ranks(2, leaving) if said]
    assert told.startswith("a rank ended before all were ready: ")


def leaving(place: Place) -> str:
    if place.share.rank == 1:
        from tensorfold.core.engine.gloo import connect

        connect(place)
        return ""
    return refused(place, [CKPT, CKPT], [{}, {}], "")
