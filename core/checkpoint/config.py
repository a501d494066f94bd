"""A checkpoint's config.json: an untrusted file that must hold one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorfold.core.errors import StartError

MOST_BYTES = 16 << 20


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
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise StartError(f"{path} holds {type(value).__name__}, not a JSON object")
    return value
