"""A safetensors file's header, believed only as far as the file bears it out.

The layout: eight bytes that hold the header's length (little-endian), the header (a JSON object of
tensors by name, padded with spaces), the tensors' bytes without a gap. Everything here is checked
before a byte of data is mapped, so what is mapped later is exactly what the header says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tensorfold.core.checkpoint.config import LFS_POINTER, POINTER_WORDS, parse_json
from tensorfold.core.errors import StartError

LENGTH_BYTES = 8
MOST_HEADER = 100_000_000
MOST_DIMENSIONS = 16
METADATA = "__metadata__"

# Bits of an element, by the format's names.
BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """One tensor of a shard: bytes `[begin, end)` of the shard's data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One safetensors file. `digest` is SHA-256 over its header and its size, in hex.

    `data` is where the tensors' bytes begin; `recorded` is a digest of its content that the file
    carries in its metadata, or none.
    """

    path: Path
    size: int
    data: int
    digest: str
    tensors: Mapping[str, Stored]
    recorded: str | None = None


class Malformed(Exception):
    """What is wrong with a file, in words that follow its name."""


def read_shard(path: Path) -> Shard:
    """Read and check a file's header. Raises `StartError` that names the file."""
    try:
        return checked_shard(path)
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from None
    except Malformed as error:
        raise StartError(f"{path} {error}") from None


def checked_shard(path: Path) -> Shard:
    size = path.stat().st_size
    if not path.is_file():
        raise Malformed("is no file")
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
        length = header_length(start, size)
        file.seek(LENGTH_BYTES)
        raw = file.read(length)
    if len(raw) != length:
        raise Malformed(f"gave {len(raw)} bytes of a header of {length}")
    entries = parse(raw)
    metadata = entries.pop(METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise Malformed(f"has a {METADATA} that is no object of texts")
    tensors = {name: stored(name, entry) for name, entry in entries.items()}
    check_cover(tensors, size - LENGTH_BYTES - length)
    return Shard(
        path=path,
        size=size,
        data=LENGTH_BYTES + length,
        digest=hashlib.sha256(raw + size.to_bytes(8, "little")).hexdigest(),
        tensors=tensors,
        recorded=metadata.get("sha256"),
    )


def header_length(start: bytes, size: int) -> int:
    """The header's length, out of a file's first bytes."""
    if size == 0:
        raise Malformed("is empty")
    if start.startswith(LFS_POINTER):
        raise Malformed(POINTER_WORDS)
    if size < LENGTH_BYTES:
        raise Malformed(f"is {size} bytes long: it is no safetensors file")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > MOST_HEADER:
        raise Malformed(
            f"claims a header of {length} bytes, more than {MOST_HEADER}: it is no safetensors file"
        )
    if length > size - LENGTH_BYTES:
        raise Malformed(
            f"is truncated: its header needs {length} bytes and {size - LENGTH_BYTES} are there"
        )
    return length


def parse(raw: bytes) -> dict[str, Any]:
    """The header's object, with no name given twice."""
    try:
        entries = parse_json(raw)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"has a header that is not JSON: {error}") from None
    if not isinstance(entries, dict):
        raise Malformed("has a header that is no JSON object")
    return entries


def stored(name: str, entry: Any) -> Stored:
    """One tensor's entry, checked by itself."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Malformed(f"does not give dtype, shape and data_offsets, and only those, of {name!r}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise Malformed(f"holds tensor {name!r} of the unknown dtype {dtype!r:.100}")
    if not are_counts(shape):
        raise Malformed(f"gives tensor {name!r} a shape that is none: {shape!r:.100}")
    if not are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise Malformed(f"gives tensor {name!r} offsets that are none: {offsets!r:.100}")
    bits, given = prod(shape) * BITS[dtype], offsets[1] - offsets[0]
    if bits != given * 8:
        raise Malformed(
            f"holds tensor {name!r} of {dtype} {shape} in {given} bytes; it needs {bits / 8:.0f}"
        )
    return Stored(name=name, dtype=dtype, shape=tuple(shape), begin=offsets[0], end=offsets[1])


def are_counts(values: Any) -> bool:
    few = isinstance(values, list) and len(values) <= MOST_DIMENSIONS
    return few and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def check_cover(tensors: Mapping[str, Stored], data_bytes: int) -> None:
    """Check that the tensors lie one after another over all of the data."""
    needed = max((tensor.end for tensor in tensors.values()), default=0)
    if needed > data_bytes:
        raise Malformed(
            f"is truncated: its tensors need {needed} bytes and {data_bytes} are there "
            "(a download that did not end?)"
        )
    reached, before = 0, None
    for tensor in sorted(tensors.values(), key=lambda t: (t.begin, t.end)):
        if tensor.begin < reached:
            raise Malformed(f"holds tensors {before!r} and {tensor.name!r} in the same bytes")
        if tensor.begin > reached:
            raise Malformed(f"has {tensor.begin - reached} unnamed bytes before {tensor.name!r}")
        reached, before = tensor.end, tensor.name
    if reached < data_bytes:
        raise Malformed(f"has {data_bytes - reached} bytes after its last tensor")
