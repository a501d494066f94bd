"""The model lines that the trainer knows: what each brings to one training loop and one judge."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tokenizers import Tokenizer
from torch import Tensor, nn

from tensorfold.tools.tiny.tokens import Words

MODULES = {"glm53": "tensorfold.tools.tiny.glm53", "dsv41": "tensorfold.tools.tiny.dsv41.line"}
MODEL_TYPES = {"glm5_next": "glm53", "deepseek_v41": "dsv41"}
Calls = list[tuple[str, dict[str, str]]]


class Losses(NamedTuple):
    """One batch's: of the next token, of drafts, of indexes; and by layer the experts' loads, none
    where a layer has none."""

    main: Tensor
    draft: Tensor
    ranking: Tensor | float
    loads_E: list[Tensor | None]
    notes: dict[str, float]


class Trainee(Protocol):
    """A model in training; `part` is "all", "main" or "drafts", which is what learns."""

    model: nn.Module

    def start(self, seed: int) -> None:
        """Draw first weights."""

    def learners(self, part: str) -> list[tuple[str, nn.Parameter]]: ...

    def losses(self, ids: Tensor, weights: Tensor, part: str, *, compiled: bool) -> Losses:
        """Of ids [B, T + 2]; a compiled loss only if asked for."""

    def balance(self, losses: Losses, speed: float) -> None:
        """Nudge each router's bias toward even use of its experts."""

    def set_compiled(self, on: bool) -> None: ...

    def official(self) -> dict[str, Tensor]:
        """Every tensor under its official name, not copied."""

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """Final-normed rows [B, T, D]."""

    def logits(self, hidden: Tensor) -> Tensor: ...

    def dropped(self, ids: list[int]) -> dict[int, float]:
        """Per layer with an index, the share of visible keys that the last row does not read."""

    def draft_agreement(self, ids: list[int]) -> tuple[int, int] | None:
        """(rows where the draft of token i + 2 is the model's own greedy choice, rows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a model line brings.

    `template`, where it is not empty, is written to a bundled model's folder. `dress` gives a chat
    what only this line's template has; `tail` is the text that ends a chat where its template does
    not. `fp32` are endings of names of tensors kept in fp32, `plain` parts of names of matrices
    that AdamW steps, `draft_layer` the beginning of the names of what drafts; `drafts` is a block's
    size, 0 where tokens are drafted one by one. `bars` are the right replies that a bundled model
    must give to the held-out prompts; `title`, `about` and `shape` are for the card.
    """

    name: str
    words: Words
    template: str
    config: Callable[[Tokenizer, dict[str, int], Path, int], dict[str, Any]]
    trainee: Callable[[dict[str, Any], Path], Trainee]
    plans: Callable[[argparse.Namespace], list[Any]]
    dress: Callable[[dict[str, Any], random.Random], dict[str, Any]]
    tail: Callable[[dict[str, Any]], str]
    parsed_calls: Callable[[str], Calls | None]
    fp32: tuple[str, ...]
    plain: tuple[str, ...]
    draft_layer: str
    drafts: int
    bars: dict[str, int]
    title: str
    about: str
    shape: Callable[[dict[str, Any]], str]


def line_called(name: str) -> Line:
    found: Line = import_module(MODULES[name]).LINE
    return found


def line_in(folder: Path) -> Line:
    """The line of a bundled model; a ValueError for a model_type that none has."""
    model_type = json.loads((folder / "config.json").read_text("utf-8"))["model_type"]
    if model_type not in MODEL_TYPES:
        raise ValueError(f"{folder / 'config.json'}: no line is trained for {model_type!r}")
    return line_called(MODEL_TYPES[model_type])


def load_official(target: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Copy official tensors in; a missing, left-over or misshapen one is a ValueError."""
    if target.keys() != tensors.keys():
        odd = sorted(target.keys() ^ tensors.keys())
        raise ValueError(f"{len(odd)} tensors missing or left over, first {odd[0]}")
    for name, value in target.items():
        if value.shape != tensors[name].shape:
            raise ValueError(f"{name} is {tuple(tensors[name].shape)}, not {value.shape}")
        value.detach().copy_(tensors[name])
