"""Engines of small random models on the GPU, each opened once for all tests of a file."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.settings import read
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tensorfold.tools import widths
from tensorfold.tools.decode import engines

BACKEND = "cuda-triton"
MADE = {
    "glm53": (GLM53, widths.tiny_glm53(4)),
    "dsv41": (DSV41, widths.tiny_dsv41(6)),
}
EAGER: dict[str, Any] = {"eager": True}
CAPTURED: dict[str, Any] = {"compile": False}
COMPILED: dict[str, Any] = {}

# An engine by its family, format and further flags of `tensorfold serve`.
Opened = Callable[..., TorchEngine]


def names(kind: str) -> pytest.MarkDecorator:
    """A test of each family; one process runs all tests of a kind and family, since engines are
    opened once a process."""
    return pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=pytest.mark.xdist_group(f"{kind} {name}")) for name in MADE],
    )


def opened(name: str, **flags: Any) -> TorchEngine:
    family, raw = MADE[name]
    sizes = {"lanes": 8, "context": 1024, "chunk_rows": 256, "window_rows": 1, **flags}
    return engines.opened(family, raw, BACKEND, read(sizes, {}), lambda *told: None)


def opened_once() -> Iterator[Opened]:
    """What opens an engine at its first call; all are freed at the end."""
    keeping = cache(opened)
    yield keeping
    keeping.cache_clear()
    gc.collect()
    torch.cuda.empty_cache()
