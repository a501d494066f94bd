"""Files that a model reads rows from while it serves."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from tensorfold.core.errors import EngineLost


class TableFile:
    """A mapped file. What it loses while it is mapped can not be read any more, and looking at it
    would end the process without a word; a file that was replaced or removed is still there."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)

    def check(self) -> None:
        """Raise `EngineLost` where it is shorter than it was."""
        now = os.fstat(self.descriptor).st_size
        if now < self.size:
            raise EngineLost(
                f"{self.path} is {now} bytes long and was {self.size} at the start: rows of tables "
                "are read from it"
            )
