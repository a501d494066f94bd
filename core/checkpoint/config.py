"""A checkpoint's config.json: an untrusted file that must hold one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorfold.core.errors import StartError

MOST_BYTES = 16 << 20
LFS_POINTER = b"version https://git-lfs"
POINTER_WORDS = "is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"


def read_config(folder: Path) -> dict[str, Any]:
    """The object of `folder`/config.json. Raises `StartError` that names the file."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise StartError(f"there is no folder {folder}")
    if not path.is_file():
        raise StartError(f"{folder} holds no config.json: it is no checkpoint's folder")
    return read_object(path, MOST_BYTES)


def read_object(path: Path, most_bytes: int) -> dict[str, Any]:
    """The JSON object of a file of at most that many bytes. Raises `StartError`."""
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise StartError(f"{path} is {size} bytes, more than the {most_bytes} it may be")
        raw = path.read_bytes()
        if raw.startswith(LFS_POINTER):
            raise StartError(f"{path} {POINTER_WORDS}")
        value = parse_json(raw)
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise StartError(f"{path} holds {type(value).__name__}, not a JSON object")
    return value


def parse_json(raw: bytes) -> Any:
    """Untrusted JSON; a name given twice in one object is a `ValueError` too."""
    return json.loads(raw.decode("utf-8"), object_pairs_hook=without_duplicates)


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it names {name!r} twice")
        found[name] = value
    return found


def declared_dtype(config: dict[str, Any]) -> str | None:
    """The dtype that a config says its weights have, or none."""
    text = config.get("text_config")
    places = [config, text] if isinstance(text, dict) else [config]
    found = [place.get(key) for place in places for key in ("dtype", "torch_dtype")]
    return next((value for value in found if isinstance(value, str)), None)
