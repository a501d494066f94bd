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
from tensorfold.plugins.manager import PLUGIN_ERRORS, Installed, discover, in_words
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


class Bundle(NamedTuple):
    """A model that ships with a family."""

    name: str
    family: str
    folder: Path


def bundles(installed: Installed) -> tuple[list[Bundle], list[str]]:
    """Every bundled model, and the families that fail to tell theirs, in words."""
    found, failed = [], []
    for family, offer in sorted(installed.families.items()):
        try:
            models = dict(offer.value.bundled())
        except PLUGIN_ERRORS as error:
            failed.append(f"family {family} failed to list its models ({in_words(error)})")
            continue
        found += [Bundle(name, family, folder) for name, folder in models.items()]
    return found, failed


def find_model(installed: Installed, backend: Backend, asked: str) -> Served:
    """The model to serve; `asked` is a folder, a bundled name or empty. Raises `StartError`."""
    if not backend.needs_family:
        return own_model(backend, asked)
    name, folder = find_folder(bundles(installed)[0], asked)
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


def find_folder(models: Sequence[Bundle], asked: str) -> tuple[str, Path]:
    """A name and its folder. A bundled name comes before a folder of that name (`./name`)."""
    wanted = asked or default_name(models)
    bundled = [model for model in models if model.name == wanted]
    if len(bundled) > 1:
        families = " and ".join(model.family for model in bundled)
        raise StartError(f"model {wanted!r} is bundled by families {families}: give its folder")
    if bundled:
        return wanted, bundled[0].folder
    folder = Path(asked)
    if folder.is_dir():
        return folder.resolve().name or "model", folder
    if folder.exists():
        raise StartError(f"{asked} is not a folder: give the folder that holds its config.json")
    raise StartError(
        f"there is no folder {asked} and no bundled model of that name ({names(models)})"
    )


def default_name(models: Sequence[Bundle]) -> str:
    """The model that is served when none is asked for."""
    if not models:
        raise StartError("no bundled model is installed: give a checkpoint's folder")
    if len(models) == 1:
        return models[0].name
    if not any(model.name == FIRST for model in models):
        raise StartError(f"several models are bundled, name one: {names(models)}")
    return FIRST


def names(models: Sequence[Bundle]) -> str:
    return ", ".join(model.name for model in models) or "none"


def main(arguments: Sequence[str]) -> int:
    Parser(
        prog="tensorfold models", description="List the bundled models: name, family, folder."
    ).parse_args(arguments)
    models, failed = bundles(discover())
    for name, family, folder in models:
        print(f"{name}  family {family}  {folder}")
    for words in failed:
        print(words)
    return 0
