"""What a golden of this family holds, and how a run is compared with it (`tensorfold parity`).

Engram rows are compared as sets of (layer, column, row), the token map as a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tensorfold.core.family_api import Cut, Mode, Rows
from tensorfold.families.dsv41.config import FAITHFUL, PLAIN, Config
from tensorfold.families.dsv41.model import Dsv41

MODES: Sequence[Mode] = (
    Mode(numerics=PLAIN, logits="logits", tolerance=5e-5),
    Mode(numerics=FAITHFUL, logits="logits_faithful", tolerance=1e-4),
)
ROWS, MAP = "engram_rows", "token_map"


def cut_up(kind: str, length: int, first: Sequence[int]) -> list[Cut]:
    """Runs of `first`, as far as they reach, and the rest in one."""
    found, done = [], 0
    for rows in first:
        taken = min(rows, length - done)
        if taken:
            found.append(Cut(kind, taken))
        done += taken
    return [*found, Cut(kind, length - done)] if done < length else found


def cuts(length: int) -> dict[str, list[Cut]]:
    """Ways to run `length` rows: whole, cut at odd places, in windows of 2 and 3, one by one."""
    windows = cut_up("window", max(0, length - 21), [2] * 9 + [3] * 6)
    return {
        "whole": [Cut("prompt", length)],
        "pieces of 5, 7, 1": cut_up("prompt", length, (5, 7, 1)),
        "pieces of 16, 20": cut_up("prompt", length, (16, 20)),
        "windows": [Cut("prompt", min(21, length)), *windows],
        "token by token": [Cut("prompt", 1)] + [Cut("window", 1)] * (length - 1),
    }


def triples(rows: Sequence[Any]) -> list[set[Any]]:
    """Of [rows, layers, columns]: a row's table rows with where they stand."""
    return [
        {
            (layer, column, name)
            for layer, names in enumerate(row)
            for column, name in enumerate(names)
        }
        for row in rows
    ]


def selections(model: Dsv41, rows: int) -> dict[str, list[set[Any]]]:
    """The Engram rows of the last forward's first rows."""
    if model.names_REC is None:
        return {}
    return {ROWS: triples(model.names_REC[:rows].tolist())}


def as_sets(name: str, golden: Tensor) -> list[set[Any]]:
    assert name == ROWS, name
    return triples(golden.tolist())


def states(
    model: Dsv41, state: Mapping[str, Tensor], golden: Mapping[str, Tensor], length: int
) -> dict[str, tuple[Tensor, Tensor]]:
    hashing = model.weights.hashing
    if hashing is None or MAP not in golden:
        return {}
    return {MAP: (hashing.map_V, golden[MAP])}


def draft_logits(
    model: Dsv41, state: Mapping[str, Tensor], rows: Rows, hidden_RD: Tensor
) -> Tensor:
    raise AssertionError("a golden of this family holds no drafts")


def names(config: Config) -> Sequence[str]:
    """Everything a golden of this family can hold besides ids."""
    found = [mode.logits for mode in MODES]
    return [*found, ROWS, MAP] if config.engram else found
