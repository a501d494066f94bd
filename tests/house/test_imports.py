"""Who may import whom. The rooms' law, read off the syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("backends", "core", "families", "plugins", "tools")
FILES = sorted(path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*.py"))

# The contracts: the files of core/ itself, and the op table.
CONTRACTS = r"tensorfold\.core(\.(?!lane_host|engine\b|checkpoint|text|server)\w+)*"
MARKER = r"tensorfold\.plugins"


def module_of(path: Path) -> str:
    parts = ("tensorfold", *path.relative_to(CHECKOUT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Every module that a source imports, as far as its syntax tells."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert node.module is not None
            yield node.module
            if node.module.count(".") < 2:
                yield from (f"{node.module}.{alias.name}" for alias in node.names if is_room(alias))
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: None if is_package else -1]
            kept = parents[: len(parents) - node.level + 1]
            yield ".".join([*kept, node.module] if node.module else kept)


def is_room(alias: ast.alias) -> bool:
    """Whether `from tensorfold.core import NAME` may name a module rather than an object."""
    return alias.name.islower()


def allowed(module: str) -> str:
    """What a module may import of the project, as a pattern."""
    parts = module.split(".")
    room = ".".join(parts[1:3])
    own = re.escape(".".join(parts[:3])) + r"(\..+)?"
    if parts[1] == "tools":
        return r"tensorfold\..+"
    if parts[1] == "backends":
        engine = r"tensorfold\.core\.engine(\..+)?"
        return "|".join((CONTRACTS, engine, MARKER, rf"{MARKER}\.hookimpl", own))
    if parts[1] == "families":
        common = r"tensorfold\.families\.common(\..+)?"
        return "|".join((CONTRACTS, common, MARKER, rf"{MARKER}\.hookimpl", own))
    if parts[1] == "plugins":
        return "|".join((CONTRACTS, r"tensorfold\.plugins(\..+)?"))
    never = {"core.lane_host": "engine", "core.engine": "lane_host"}.get(room)
    return rf"tensorfold\.core(\.(?!{never}\b).+)?" if never else r"tensorfold\.core(\..+)?"


def forbidden(source: str, module: str, is_package: bool = False) -> list[str]:
    project = [
        name
        for name in imports_of(source, module, is_package)
        if name.split(".")[0] in ("tensorfold", "tests", *FOLDERS)
    ]
    return [name for name in project if not re.fullmatch(allowed(module), name)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    source = path.read_text()
    assert forbidden(source, module_of(path), path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tensorfold.core.server.app", "import tensorfold.tools.cli"),
        ("tensorfold.core.server.app", "from tensorfold.plugins import manager"),
        ("tensorfold.core.settings", "from core import errors"),
        ("tensorfold.core.settings", "from tests.null import parts"),
        ("tensorfold.core.lane_host.host", "from tensorfold.core.engine import torch_engine"),
        ("tensorfold.core.lane_host.host", "from tensorfold.core import engine"),
        ("tensorfold.core.engine.batch", "import tensorfold.core.lane_host.host"),
        ("tensorfold.backends.fake.engine", "from tensorfold.families.glm53 import config"),
        ("tensorfold.backends.fake.engine", "from tensorfold.backends.cpu_reference import ops"),
        ("tensorfold.backends.fake.engine", "from tensorfold.core.lane_host import fills"),
        ("tensorfold.backends.fake.engine", "from tensorfold.plugins.manager import discover"),
        ("tensorfold.backends.fake.engine", "from ..cpu_reference import ops"),
        ("tensorfold.families.glm53.model", "from tensorfold.backends import fake"),
        ("tensorfold.families.glm53.model", "from tensorfold.families.dsv41 import config"),
        ("tensorfold.families.glm53.model", "import tensorfold.core.server"),
        ("tensorfold.families.glm53.model", "from tensorfold.core.engine.state import State"),
        ("tensorfold.plugins.manager", "from tensorfold.backends.fake import plugin"),
        ("tensorfold.plugins.manager", "from tensorfold.tools import cli"),
        ("tensorfold.plugins.manager", "def f():\n    import tensorfold.families.glm53"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert forbidden(source, module) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tensorfold.tools.serve", "from tensorfold.backends.fake import engine"),
        ("tensorfold.backends.fake.plugin", "from tensorfold.plugins import hookimpl"),
        ("tensorfold.backends.cpu_reference.ops", "from tensorfold.core.ops.linear import LINEAR"),
        ("tensorfold.backends.cpu_reference.backend", "from tensorfold.core.engine import x"),
        ("tensorfold.backends.fake.engine", "from tensorfold.core.engine_api import Engine"),
        ("tensorfold.families.glm53.model", "from tensorfold.families.common import norm"),
        ("tensorfold.families.glm53.model", "from . import config"),
        ("tensorfold.core.lane_host.host", "from tensorfold.core.engine_api import Engine"),
        ("tensorfold.core.engine.batch", "from tensorfold.core.checkpoint import load"),
    ],
)
def test_an_allowed_import_is_let_pass(module: str, source: str) -> None:
    assert forbidden(source, module) == []
