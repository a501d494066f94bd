"""How the release words its tools: read from the encoder in its `encoding` folder.

The encoder is Python of the checkpoint's and is never run. Only its syntax tree is looked at: the
one text that holds the heading of the schemas, and the call that fills it in.
"""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from string import Formatter
from typing import NamedTuple

from tensorfold.core.errors import StartError

FOLDER, FILE = "encoding", "encoding.py"
HEADING = "### Available Tool Schemas"
MOST_BYTES = 1 << 20


class Wording(NamedTuple):
    """What stands before the tools' schemas, and after them."""

    before: str
    after: str


def tool_wording(folder: Path) -> Wording | None:
    """The wording of a checkpoint, none where it has no `encoding` folder. Raises `StartError`."""
    if not (folder / FOLDER).is_dir():
        return None
    path = folder / FOLDER / FILE
    try:
        if path.stat().st_size > MOST_BYTES:
            raise StartError(f"{path} is more than {MOST_BYTES} bytes")
        with warnings.catch_warnings():
            # What a compiler would tell its author is none of ours.
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise StartError(f"{path} is no Python that can be read: {error}") from None
    texts = texts_of(tree)
    found = [name for name, text in texts.items() if HEADING in text]
    if len(found) != 1:
        raise StartError(f"{path} has {len(found)} texts with {HEADING!r}: one is needed")
    filled = filling(tree, found[0])
    if filled is None:
        raise StartError(f"{path} never fills in {found[0]}: the wording of tools is not known")
    return split(path, found[0], texts, filled)


def texts_of(tree: ast.Module) -> dict[str, str]:
    """The module's names that are given a text, as they stand last."""
    found = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found.update({one.id: value.value for one in targets if isinstance(one, ast.Name)})
    return found


def filling(tree: ast.Module, name: str) -> ast.Call | None:
    """The first `name.format(...)`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value
        if node.func.attr == "format" and isinstance(owner, ast.Name) and owner.id == name:
            return node
    return None


def split(path: Path, name: str, texts: dict[str, str], filled: ast.Call) -> Wording:
    """The text with every known value filled in; what is not known must be the schemas."""
    known, unknown = {}, []
    for keyword in filled.keywords:
        value = keyword.value
        if isinstance(value, ast.Name) and value.id in texts:
            known[keyword.arg] = texts[value.id]
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            known[keyword.arg] = value.value
        else:
            unknown.append(keyword.arg)
    parts = [""]
    try:
        for text, field, spec, conversion in Formatter().parse(texts[name]):
            parts[-1] += text
            if field is None:
                continue
            if spec or conversion or field not in (*known, *unknown):
                raise StartError(f"{path}: {name} has a field {field!r} that nothing fills in")
            if field in known:
                parts[-1] += known[field]
            else:
                parts.append("")
    except ValueError as error:
        raise StartError(f"{path}: {name} is no text to fill in: {error}") from None
    if filled.args or len(parts) != 2 or HEADING not in parts[0]:
        raise StartError(f"{path}: {name} has no one place for the schemas behind {HEADING!r}")
    return Wording(*parts)
