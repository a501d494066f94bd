"""Engram rows of prompts to come, brought into the host's memory before a forward asks for them.

Tables on disk are mapped, and the first look at a row waits for the disk. Threads look at the rows
of coming pieces while others run; what they see is dropped, and a forward reads its rows itself. So
reading ahead can make a forward wait less, and change nothing in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.errors import EngineLost
from tensorfold.families.dsv41 import engram
from tensorfold.families.dsv41.config import Config
from tensorfold.families.dsv41.engram import Hashing, Table

# Rows are read one by one, so a disk is kept busy by as many readers, of so many rows at a time.
READERS, PART = 16, 1024
# Parts that may wait: prompts that come faster than a disk gives rows are not read ahead further.
MOST_WAITING = 4096


class ReadAhead:
    """`tables` are in the order of `Hashing`'s layers."""

    def __init__(self, config: Config, hashing: Hashing, tables: Sequence[Table]) -> None:
        self.config, self.tables = config, tables
        self.hashing = hashing._replace(
            map_V=hashing.map_V.cpu(),
            factor_ES=hashing.factor_ES.cpu(),
            prime_EC=hashing.prime_EC.cpu(),
            first_EC=hashing.first_EC.cpu(),
        )
        self.pool = ThreadPoolExecutor(READERS, thread_name_prefix="tables")
        self.lock = threading.Lock()
        self.waiting = 0
        self.failed: Exception | None = None

    def expect(self, tokens: Sequence[int], start: int, end: int) -> None:
        """A `family_api.ReadsAhead`'s."""
        if self.failed is not None:
            raise EngineLost(f"reading rows of a table ahead failed: {self.failed}")
        if self.waiting < MOST_WAITING:
            back = self.hashing.factor_ES.shape[1] - 1
            self.submit(self.begin, tokens[max(0, start - back) : end], start, end)

    def submit(self, work: Callable[..., None], *args: Any) -> None:
        with self.lock:
            self.waiting += 1
        self.pool.submit(self.run, work, *args)

    def run(self, work: Callable[..., None], *args: Any) -> None:
        try:
            with torch.inference_mode():
                work(*args)
        except Exception as error:  # told by the next `expect`
            self.failed = error
        finally:
            with self.lock:
                self.waiting -= 1

    def begin(self, tokens: Sequence[int], start: int, end: int) -> None:
        """`tokens` are the rows' own and as many before them as n-grams begin with."""
        for table, name_N in zip(self.tables, self.names(tokens, start, end), strict=True):
            for part in name_N.split(PART):
                self.submit(table.touch, part)

    def names(self, tokens: Sequence[int], start: int, end: int) -> list[Tensor]:
        """The rows of each table that rows [start, end) name, ascending."""
        shifts = self.hashing.factor_ES.shape[1]
        position_R = torch.arange(start, end)
        ids_T = torch.tensor(tokens)
        first = end - len(tokens)
        place_RS = position_R[:, None] - torch.arange(shifts) - first
        names_REC = engram.names(
            self.config, self.hashing, ids_T[place_RS.clamp(min=0)], position_R
        )
        return [names_REC[:, layer].unique() for layer in range(names_REC.shape[1])]
