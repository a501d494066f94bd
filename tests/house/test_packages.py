"""The package map of pyproject.toml: complete, so that an install holds what the checkout holds."""

from __future__ import annotations

import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS = {"backends", "core", "families", "plugins", "tools"}


def folders_with_modules() -> set[Path]:
    modules = (path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*.py"))
    return {path.parent.relative_to(CHECKOUT) for path in modules}


def test_the_top_level_folders_are_the_five_of_the_package_map() -> None:
    assert SETUPTOOLS["package-dir"] == {f"tensorfold.{folder}": folder for folder in FOLDERS}
    top = {path.parent.name for path in CHECKOUT.glob("*/__init__.py")}
    assert top == FOLDERS


def test_every_folder_with_modules_is_a_package_and_listed() -> None:
    found = folders_with_modules()
    assert {str(f) for f in found if not (CHECKOUT / f / "__init__.py").is_file()} == set()
    listed = SETUPTOOLS["packages"]
    assert listed == sorted(listed)
    assert set(listed) == {".".join(("tensorfold", *folder.parts)) for folder in found}


def test_every_file_that_is_no_module_is_package_data() -> None:
    """Of the folders that ship data; what is read at run time must be in the wheel."""
    patterns = SETUPTOOLS["package-data"]
    left_out = []
    for package in SETUPTOOLS["packages"]:
        folder = CHECKOUT.joinpath(*package.split(".")[1:])
        below = {CHECKOUT.joinpath(*p.split(".")[1:]) for p in SETUPTOOLS["packages"]} - {folder}
        for path in folder.rglob("*"):
            if path.is_dir() or path.suffix in (".py", ".pyc") or below & set(path.parents):
                continue
            globs = [*patterns["*"], *patterns.get(package, [])]
            if not any(path.relative_to(folder).match(glob) for glob in globs):
                left_out.append(str(path.relative_to(CHECKOUT)))
    assert left_out == []


def test_every_plugin_of_the_project_stands_in_a_listed_package() -> None:
    for name, module in PROJECT["project"]["entry-points"]["tensorfold"].items():
        package, _, last = module.rpartition(".")
        assert package in SETUPTOOLS["packages"], name
        assert last == ("builtin" if package == "tensorfold.plugins" else "plugin"), name


def test_the_requirements_pin_every_dependency() -> None:
    lines = (CHECKOUT / "tools" / "requirements.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    extras = PROJECT["project"]["optional-dependencies"]["dev"]
    for requirement in PROJECT["project"]["dependencies"] + extras:
        assert requirement.partition(">=")[0].lower() in pinned, requirement
