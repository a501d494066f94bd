"""Plain text read from folders given to the trainer: works, hashes, held-out stretches."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

LONG = 300_000  # characters from which a work gives a stretch to the held-out text
STRETCH = 25_000  # characters of that stretch
SUFFIXES = (".txt", ".rst", ".py", ".md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of works under one licence; `share` is its part of the plain text trained on."""

    name: str
    licence: str
    share: float
    works: dict[str, str]
    sha256: dict[str, str]


def read_folder(name: str, licence: str, share: float, path: Path, most: int | None) -> Folder:
    """Every text file below `path` in name order, up to `most` characters in all."""
    works, hashes, total = {}, {}, 0
    for file in sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file()):
        content = file.read_bytes()
        text = content.decode("utf-8", "replace")
        if most is not None and total + len(text) > most:
            continue
        total += len(text)
        works[str(file.relative_to(path))] = text
        hashes[str(file.relative_to(path))] = hashlib.sha256(content).hexdigest()
    if not works:
        raise ValueError(f"no text files below {path}")
    return Folder(name=name, licence=licence, share=share, works=works, sha256=hashes)


def one_hash(folder: Folder) -> str:
    """SHA-256 over the names and hashes of a folder's works, in order."""
    listing = "".join(f"{folder.sha256[name]}  {name}\n" for name in sorted(folder.sha256))
    return hashlib.sha256(listing.encode()).hexdigest()


def split_held_out(text: str) -> tuple[list[str], str]:
    """(parts to train on, held-out stretch): from the middle of a long work, whole paragraphs."""
    if len(text) < LONG:
        return [text], ""
    start = text.index("\n\n", len(text) // 2) + 2
    end = text.index("\n\n", start + STRETCH)
    return [text[:start], text[end:]], text[start:end]
