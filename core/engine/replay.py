"""Running rows through an engine's model outside any stream's life, for parity and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.state import Seat, Storage
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.family_api import Cut
from tensorfold.core.state_spec import PerToken


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """Rows in order: hidden [T, D] and logits [T, V], and the stream's state after them."""

    hidden: Tensor
    logits: Tensor
    state: Mapping[str, Tensor]


def nothing(model: Any, rows: int) -> None:
    return None


def replay(
    engine: TorchEngine,
    tokens: Sequence[int],
    cuts: Sequence[Cut],
    each: Callable[[Any, int], None] = nothing,
) -> Replayed:
    """Run `tokens` cut as told, in a lane of its own that is freed after; window rows all count.

    `each` is called after every forward with the model and the forward's rows.
    """
    storage, model = engine.storage, engine.model
    with torch.inference_mode():
        seat = storage.claim(len(tokens))
        try:
            hidden, logits, start = [], [], 0
            for cut in cuts:
                run = Run(tokens[start : start + cut.rows], seat.lane, start)
                prompt = cut.kind == "prompt"
                rows = batch.build(
                    [run], storage, prompt=prompt, tile=engine.tile, context=engine.info.context
                )
                hidden_RD = model.prompt(rows) if prompt else model.window(rows)
                if not prompt:
                    model.settle(rows, rows.count_B)
                each(model, cut.rows)
                hidden.append(hidden_RD[: cut.rows])
                logits.append(model.logits(hidden_RD)[: cut.rows])
                start += cut.rows
            assert start == len(tokens), (start, len(tokens))
            state = stream_state(storage, seat, len(tokens))
            return Replayed(hidden=torch.cat(hidden), logits=torch.cat(logits), state=state)
        finally:
            storage.release(seat)


def stream_state(storage: Storage, seat: Seat, tokens: int) -> dict[str, Tensor]:
    """One stream's state: per-token rows in order, rings and fixed states; copies."""
    found = {}
    page = storage.spec.page
    for entry in storage.spec.entries:
        buffer = storage.buffers[entry.name]
        if isinstance(entry, PerToken):
            paged = buffer.view(-1, page // entry.every, entry.width)
            pages = torch.tensor(seat.pages[: -(-tokens // page)], device=buffer.device)
            found[entry.name] = paged[pages].flatten(0, 1)[: tokens // entry.every].clone()
        else:
            found[entry.name] = buffer[seat.lane].clone()
    return found
