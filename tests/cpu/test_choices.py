"""What an engine runs as: its format, and whether forwards are compiled."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine.open_engine import compiles
from tensorfold.core.engine.source import format_of
from tensorfold.core.errors import StartError
from tensorfold.core.settings import read
from tests.cpu.driving import opened

BOTH = (torch.bfloat16, torch.float32)


def order(folder: Path | None = None, **flags: Any) -> EngineOrder:
    return EngineOrder(settings=read(flags, {}), folder=folder)


def declaring(folder: Path, dtype: str) -> Path:
    (folder / "config.json").write_text(json.dumps({"text_config": {"dtype": dtype}}))
    return folder


def test_a_format_is_the_orders_then_the_checkpoints_then_the_first(tmp_path: Path) -> None:
    assert format_of(order(), BOTH) == torch.bfloat16
    assert format_of(order(dtype="float32"), BOTH) == torch.float32
    declared = declaring(tmp_path, "float32")
    assert format_of(order(declared), BOTH) == torch.float32
    assert format_of(order(declared, dtype="bfloat16"), BOTH) == torch.bfloat16
    # A backend of one format widens whatever it reads.
    assert format_of(order(declaring(tmp_path, "float16")), (torch.float32,)) == torch.float32


def test_a_format_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="the checkpoint is of float16: give --dtype bfloat16 or"):
        format_of(order(declaring(tmp_path, "float16")), BOTH)
    with pytest.raises(StartError, match="--dtype is bfloat16: backend cpu-reference has float32"):
        opened(dtype="bfloat16")
    with pytest.raises(StartError, match="TF_DTYPE must be one of"):
        read({}, {"TF_DTYPE": "float8"})


@pytest.mark.parametrize(
    ("flags", "on_cpu", "on_gpu"),
    [
        ({}, False, True),
        ({"eager": True}, False, False),
        ({"compile": True}, True, True),
        ({"compile": False}, False, False),
    ],
)
def test_a_gpu_compiles_unless_told(flags: dict[str, bool], on_cpu: bool, on_gpu: bool) -> None:
    for device, wanted in ((False, on_cpu), (True, on_gpu)):
        assert compiles(order(**flags), SimpleNamespace(compiles=device)) is wanted  # type: ignore[arg-type]


def test_eager_and_compiled_at_once_is_refused() -> None:
    with pytest.raises(StartError, match="--eager runs nothing compiled"):
        opened(eager=True, compile=True)
