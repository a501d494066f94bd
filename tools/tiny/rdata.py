"""Character vectors out of an R package's data files, without R.

`python -m tensorfold.tools.tiny.rdata DATABASE.rdb OUT_DIR` writes one text file a novel of the
package janeaustenr: paragraphs unwrapped, one blank line between two.

Format: R Internals, "Serialization Formats" (XDR) and "Lazyload": the .rdb file is a sequence of
chunks, each a big-endian length and a zlib stream.
"""

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

STRINGS, STRING = 16, 9
# "X\n", a format version and two R versions; format 3 then names its text encoding.
HEADER = struct.Struct(">2siii")


def chunks(database: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(database):
        stream = zlib.decompressobj()
        yield stream.decompress(database[at + 4 :])
        at = len(database) - len(stream.unused_data)


def character_vector(chunk: bytes) -> list[str]:
    """The strings of one serialized character vector; any other object is a ValueError."""
    magic, version, _, _ = HEADER.unpack_from(chunk)
    at = HEADER.size
    if magic != b"X\n" or version not in (2, 3):
        raise ValueError("not an XDR serialization of version 2 or 3")
    if version == 3:
        at += 4 + struct.unpack_from(">i", chunk, at)[0]
    kind, count = struct.unpack_from(">ii", chunk, at)
    if kind & 255 != STRINGS:
        raise ValueError(f"an R object of type {kind & 255}, not a character vector")
    at += 8
    out = []
    for _ in range(count):
        kind, size = struct.unpack_from(">ii", chunk, at)
        if kind & 255 != STRING:
            raise ValueError(f"an R object of type {kind & 255} among strings")
        at += 8
        out.append(chunk[at : at + max(size, 0)].decode())
        at += max(size, 0)
    return out


def unwrap(lines: list[str]) -> str:
    paragraphs = "\n".join(line.strip() for line in lines).split("\n\n")
    joined = (" ".join(paragraph.split()) for paragraph in paragraphs)
    return "\n\n".join(paragraph for paragraph in joined if paragraph) + "\n"


def main(database: str, out: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for chunk in chunks(Path(database).read_bytes()):
        lines = character_vector(chunk)
        title = next(line for line in lines if line.strip())
        name = "_".join(title.lower().split()) + ".txt"
        (folder / name).write_text(unwrap(lines), encoding="utf-8")
        print(f"{name}: {len(lines)} lines")


if __name__ == "__main__":
    main(*sys.argv[1:])
