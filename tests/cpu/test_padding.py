"""Padding rows cost no expert's weights: they pick none, and real rows keep their picks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.torch_engine import TorchEngine
from tests.cpu import driving
from tests.cpu.dsv41 import engines

ROUTED = {"glm53": "experts", "dsv41": "experts_weighted"}


@pytest.mark.parametrize("name", ROUTED)
@pytest.mark.parametrize("prompt", [True, False])
def test_padding_rows_pick_no_expert(name: str, prompt: bool) -> None:
    engine: TorchEngine = driving.opened() if name == "glm53" else engines.opened("plain")
    model: Any = engine.model
    picked: list[Tensor] = []
    run = getattr(model.ops, ROUTED[name])

    def spy(x_RD: Tensor, ids_RK: Tensor, *rest: Any) -> Any:
        picked.append(ids_RK)
        return run(x_RD, ids_RK, *rest)

    model.ops = replace(model.ops, **{ROUTED[name]: spy})
    with torch.inference_mode():
        seat = engine.storage.claim(5)
        built = batch.build(
            [Run((3, 4, 5), seat.lane, 0)], engine.storage, prompt=prompt, tile=8, context=320
        )
        model.prompt(built) if prompt else model.window(built)
    assert picked
    for ids_RK in picked:
        assert len(ids_RK) == 8
        assert bool((ids_RK[:3] >= 0).all())
        assert bool((ids_RK[3:] < 0).all())
