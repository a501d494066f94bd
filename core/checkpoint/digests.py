"""Which engine made a reply: one hash over the version, the weights and what changes bits."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tensorfold.core.backend_api import Progress, no_progress
from tensorfold.core.checkpoint.folder import Checkpoint
from tensorfold.core.checkpoint.header import Shard
from tensorfold.core.errors import StartError
from tensorfold.core.version import VERSION

# A smaller shard is hashed whole at each start; a larger one's digest is kept between starts.
SMALL_BYTES = 256 << 20
READERS = 4
KEPT = "digests.json"


class ShardDigests(NamedTuple):
    """One shard: its file's name, and the digests of its header and of its content."""

    name: str
    header: str
    content: str


class Contents(NamedTuple):
    """Digests of a checkpoint's weights and of its config.json; empty without one."""

    shards: tuple[ShardDigests, ...] = ()
    config: str = ""

    def facts(self) -> dict[str, str]:
        """By file, what two copies of a checkpoint have alike."""
        found = {shard.name: f"{shard.header} {shard.content}" for shard in self.shards}
        return {**found, "config.json": self.config}


def contents_of(
    checkpoint: Checkpoint, *, cache: Path | None = None, progress: Progress = no_progress
) -> Contents:
    """`cache` is a folder for the digests of large shards."""
    digests = content_digests(checkpoint.shards, cache, progress)
    shards = tuple(
        ShardDigests(shard.path.name, shard.digest, content)
        for shard, content in zip(checkpoint.shards, digests, strict=True)
    )
    config_file = checkpoint.folder / "config.json"
    config = hashlib.sha256(config_file.read_bytes()).hexdigest() if config_file.is_file() else ""
    return Contents(shards, config)


NO_CONTENTS = Contents()


def identity(bits: Mapping[str, str | int | float | bool], contents: Contents = NO_CONTENTS) -> str:
    """A hex SHA-256 of this version, `bits` and a checkpoint's weights and config.

    `bits` are the settings that change bits: backend, device, dtype, whether it is compiled; not
    lanes, fills or drafts.
    """
    weights = sorted((shard.header, shard.content) for shard in contents.shards)
    config = contents.config
    parts = {"version": VERSION, "bits": dict(bits), "weights": weights, "config": config}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def content_digests(
    shards: Iterable[Shard], cache: Path | None, progress: Progress = no_progress
) -> list[str]:
    """A digest of each shard's content, in order.

    A small shard is hashed now; so is a large one, unless its metadata or `cache` has a digest.
    """
    shards = list(shards)
    kept = read_kept(cache)
    known = [known_digest(shard, kept) for shard in shards]
    missing = [shard for shard, digest in zip(shards, known, strict=True) if digest is None]
    fresh: dict[Path, str] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for shard, digest in zip(missing, pool.map(content_digest, missing), strict=True):
            fresh[shard.path] = digest
            progress("hashing weights", len(fresh), len(missing))
    write_kept(cache, kept, [shard for shard in missing if shard.size > SMALL_BYTES], fresh)
    return [d or fresh[shard.path] for shard, d in zip(shards, known, strict=True)]


def known_digest(shard: Shard, kept: Mapping[str, str]) -> str | None:
    if shard.size <= SMALL_BYTES:
        return None
    return shard.recorded or kept.get(key_of(shard))


def content_digest(shard: Shard) -> str:
    """Hex SHA-256 of the tensors' bytes of a shard."""
    try:
        with shard.path.open("rb") as file:
            file.seek(shard.data)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StartError(f"{shard.path} cannot be read: {error.strerror}") from None


def key_of(shard: Shard) -> str:
    """What a kept digest is good for: this file, unchanged."""
    status = shard.path.stat()
    return f"{shard.path.resolve()}:{status.st_size}:{status.st_mtime_ns}:{shard.digest}"


def read_kept(cache: Path | None) -> dict[str, str]:
    """The kept digests; one that cannot be read is worked out again."""
    if cache is None:
        return {}
    try:
        kept = json.loads((cache / KEPT).read_text())
    except (OSError, ValueError):
        return {}
    texts = isinstance(kept, dict) and all(isinstance(value, str) for value in kept.values())
    return kept if texts else {}


def write_kept(
    cache: Path | None, kept: dict[str, str], large: list[Shard], fresh: dict[Path, str]
) -> None:
    """Keep the digests of large shards. A folder that cannot be written costs time, no truth."""
    if cache is None or not large:
        return
    kept = {**kept, **{key_of(shard): fresh[shard.path] for shard in large}}
    partial = cache / f"{KEPT}.{os.getpid()}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(kept))
        partial.replace(cache / KEPT)
    except OSError:
        with suppress(OSError):
            partial.unlink()
