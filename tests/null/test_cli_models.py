"""Which model a name or a folder means."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorfold.core.errors import StartError
from tensorfold.tools import models


def bundle(name: str, folder: Path = Path("bundled"), family: str = "f") -> models.Bundle:
    return models.Bundle(name, family, folder)


def test_without_a_name_the_bundled_model_is_meant(tmp_path: Path) -> None:
    assert models.find_folder([bundle("a", tmp_path)], "") == ("a", tmp_path)
    two = [bundle("a"), bundle(models.FIRST, tmp_path)]
    assert models.find_folder(two, "") == (models.FIRST, tmp_path)
    with pytest.raises(StartError, match="several models are bundled, name one: a, b"):
        models.find_folder([bundle("a"), bundle("b")], "")
    with pytest.raises(StartError, match="no bundled model is installed"):
        models.find_folder([], "")


def test_a_bundled_name_comes_before_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    assert models.find_folder([bundle("a")], "a") == ("a", Path("bundled"))
    assert models.find_folder([bundle("a")], "./a") == ("a", Path("a"))


def test_a_model_that_two_families_bundle_is_refused_naming_them() -> None:
    two = [bundle("a", family="f"), bundle("a", family="g"), bundle("b")]
    with pytest.raises(StartError, match="model 'a' is bundled by families f and g"):
        models.find_folder(two, "a")
    assert models.find_folder(two, "b")[0] == "b"
