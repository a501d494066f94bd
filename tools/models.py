"""Which model is meant: a checkpoint's folder, or the name of one that ships with a family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tensorfold.core.backend_api import Backend
from tensorfold.core.checkpoint import read_config
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import Family
from tensorfold.plugins.choose import choose_family
from tensorfold.plugins.manager import Installed, discover
from tensorfold.tools.arguments import Parser

# What is served when nothing is asked for and several models ship.
FIRST = "tiny-glm53"


class Served(NamedTuple):
    """A model to serve: the name clients see by default, its folder, and who reads it.

    `family` is none where the backend needs none.
    """

    name: str
    folder: Path
    family: Family | None


def bundled(installed: Installed) -> dict[str, Path]:
    """The models that ship with the installed families, by name."""
    return {
        name: folder
        for _, offer in sorted(installed.families.items())
        for name, folder in offer.value.bundled().items()
    }


def find_model(installed: Installed, backend: Backend, asked: str) -> Served:
    """The model to serve; `asked` is a folder, a bundled name or empty. Raises `StartError`."""
    if not backend.needs_family:
        return own_model(backend, asked)
    name, folder = find_folder(bundled(installed), asked)
    config = read_config(folder)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise StartError(f"{folder / 'config.json'} has no model_type")
    try:
        family = choose_family(installed, model_type)
    except StartError as error:
        raise StartError(f"{folder / 'config.json'}: {error}") from None
    return Served(name, folder, family)


def own_model(backend: Backend, asked: str) -> Served:
    """The one model of a backend that brings a whole engine."""
    folder = backend.bundled()
    if asked not in ("", backend.name):
        raise StartError(f"backend {backend.name!r} serves its own model only, not {asked!r}")
    if folder is None:
        raise StartError(f"backend {backend.name!r} names no folder with a tokenizer to serve")
    return Served(backend.name, folder, None)


def find_folder(models: dict[str, Path], asked: str) -> tuple[str, Path]:
    """A name and its folder. A bundled name comes before a folder of that name (`./name`)."""
    if not asked:
        return default_model(models)
    if asked in models:
        return asked, models[asked]
    folder = Path(asked)
    if folder.is_dir():
        return folder.resolve().name, folder
    if folder.exists():
        raise StartError(f"{asked} is not a folder: give the folder that holds its config.json")
    names = ", ".join(models) or "none"
    raise StartError(f"there is no folder {asked} and no bundled model of that name ({names})")


def default_model(models: dict[str, Path]) -> tuple[str, Path]:
    if not models:
        raise StartError("no bundled model is installed: give a checkpoint's folder")
    if FIRST not in models and len(models) > 1:
        raise StartError(f"several models are bundled, name one: {', '.join(models)}")
    name = FIRST if FIRST in models else next(iter(models))
    return name, models[name]


def main(arguments: Sequence[str]) -> int:
    Parser(
        prog="tensorfold models", description="List the bundled models: name, family, folder."
    ).parse_args(arguments)
    for family, offer in sorted(discover().families.items()):
        for name, folder in offer.value.bundled().items():
            print(f"{name}  family {family}  {folder}")
    return 0
