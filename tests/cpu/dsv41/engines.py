"""Engines over dsv41's golden model, and the part of a stream's state that later rows can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tensorfold.backends.cpu_reference.backend import open_engine
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine import checks
from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.state import Seat
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.settings import read
from tensorfold.core.state_spec import Ring
from tensorfold.families.dsv41.plugin import FAMILY

GOLDEN = Path(__file__).parents[2] / "data" / "dsv41"
CKPT = GOLDEN / "ckpt"
WINDOW_ROWS = 14
MODES = ("plain", "faithful")


def opened(
    numerics: str,
    folder: Path = CKPT,
    *,
    verdict: Callable[..., bool] = checks.holds,
    **flags: Any,
) -> TorchEngine:
    sizes = {
        "lanes": 8,
        "context": 320,
        "chunk_rows": 320,
        "window_rows": WINDOW_ROWS,
        "threads": 1,
        "numerics": numerics,
        "drafts": 0,
        "copies": False,
    }
    order = EngineOrder(settings=read(sizes | flags, {}), folder=folder, family=FAMILY)
    return open_engine(order, verdict=verdict)


def live(engine: TorchEngine, state: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Of rings, the rows that a row to come can read."""
    config = engine.model.config  # type: ignore[attr-defined]
    back = {"window": config.window - 1, "open": rows % 2, "ids": 3, "draft": config.window}
    found = dict(state)
    for entry in engine.storage.spec.entries:
        if isinstance(entry, Ring):
            first = max(0, rows - back[entry.name.split(".")[0]])
            places = [position % entry.rows for position in range(first, rows)]
            found[entry.name] = found[entry.name][places]
    return found


def state_after(engine: TorchEngine, seat: Seat, rows: int) -> dict[str, Tensor]:
    return live(engine, stream_state(engine.storage, seat, rows), rows)
