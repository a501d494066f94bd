"""Whole bundled models on Triton's kernels, over ranks: replies of two have the bits of one's.

A kernel at a time is held by the other files, and by `tests/device` on GPUs; this is what a machine
without one can tell of kernels, cuts and sums together.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorfold.backends.cuda_triton.table import candidates
from tensorfold.core.backend_api import EngineOrder, Place
from tensorfold.core.engine import gloo
from tensorfold.core.engine.open_engine import Device, open_torch_engine
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Engine, Piece, Sampling, Window
from tensorfold.core.settings import read
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tests.cpu.driving import Asked, begin, some_tokens
from tests.cpu.ranks.running import led, on_ranks
from tests.interpreter.dots import in_order

FAMILIES = {"glm53": GLM53, "dsv41": DSV41}
FOLDERS = Path(__file__).parents[2] / "families"
SIZES = {"lanes": 2, "context": 128, "chunk_rows": 64, "window_rows": 4, "threads": 1}
SIZES |= {"drafts": 0, "copies": False, "eager": True, "dtype": "float32"}


def nothing_compiled(*given: Any) -> Any:
    raise AssertionError("an eager engine has no graphs")


def opened(place: Place | None, name: str) -> TorchEngine:
    device = Device(
        backend="cuda-triton",
        candidates=candidates(),
        device=torch.device("cpu"),
        dtype=torch.float32,
        tile=2,
        free_bytes=lambda: 8 << 30,
        bits={},
        graph=nothing_compiled,
        connect=gloo.connect,
        # No library's products: the kernels are what is looked at.
        verdict=lambda *given, **further: False,
    )
    order = EngineOrder(
        settings=read(SIZES, {}), folder=FOLDERS / name / "tiny", family=FAMILIES[name], place=place
    )
    return open_torch_engine(order, device)


def scene(engine: Engine) -> list[Any]:
    """Two prompts packed, and a round of both in which one has a wrong guess."""
    sampled = Sampling(temperature=0.9)
    asks = [
        Asked(prompt=tuple(some_tokens(length, length)), most=4, sampling=sampled, seed=length)
        for length in (3, 2)
    ]
    for stream, asked in enumerate(asks):
        begin(engine, stream, asked)
    pieces = [
        Piece(stream=stream, start=0, end=len(asked.prompt)) for stream, asked in enumerate(asks)
    ]
    filled = engine.fill(pieces).land()
    tokens = [one.token for one in filled]
    assert None not in tokens
    windows = [
        Window(stream=0, tokens=(tokens[0] or 0, 7)),
        Window(stream=1, tokens=(tokens[1] or 0,)),
    ]
    landed = engine.round(windows).land()
    for stream in range(len(asks)):
        engine.close(stream)
    return [
        *((one.token, one.logprob) for one in filled),
        *((tuple(one.tokens), tuple(one.logprobs)) for one in landed),
    ]


def played(place: Place | None, name: str) -> Any:
    from triton.runtime.interpreter import InterpreterBuilder

    InterpreterBuilder.create_dot = in_order
    # Interpreted, a rank may be far behind another.
    gloo.FORWARD = timedelta(minutes=2)
    engine = opened(place, name)
    return led(place, engine, scene), engine.info.identity


@pytest.mark.parametrize("name", FAMILIES)
def test_two_ranks_give_the_bits_and_the_identity_of_one(name: str) -> None:
    ((one, alone),) = on_ranks(1, played, name)
    (two, first), (_, second) = on_ranks(2, played, name)
    assert two == one
    assert alone == first == second
