"""The engine as a subject of the judge: the weights that ship, run by what serves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tensorfold.backends.cpu_reference.backend import open_engine
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine import batch
from tensorfold.core.engine.replay import replay
from tensorfold.core.engine.state import allocate
from tensorfold.core.engine_api import Opening, Piece, Window
from tensorfold.core.family_api import Cut, Family
from tensorfold.core.settings import read

CHUNK = 512
WINDOW_ROWS = 1


class EngineSubject:
    """`rows` is the longest text that will be read; replies are made through the engine's door."""

    def __init__(self, folder: Path, family: Family, ends: frozenset[int], rows: int) -> None:
        context = -(-rows // CHUNK) * CHUNK
        flags = {"context": context, "window_rows": WINDOW_ROWS, "chunk_rows": CHUNK}
        order = EngineOrder(settings=read(flags, {}), folder=folder, family=family)
        self.engine = open_engine(order)
        self.family, self.ends = family, ends
        self.next_stream = 0

    def generate(self, ids: list[int], most: int) -> list[int]:
        return self.generate_many([ids], most)[0]

    def generate_many(self, prompts: list[list[int]], most: int) -> list[list[int]]:
        """Greedy replies, as many together as there are lanes; end tokens are left out."""
        lanes = self.engine.info.lanes
        found: list[list[int]] = []
        for start in range(0, len(prompts), lanes):
            found += self.together(prompts[start : start + lanes], most)
        return found

    def together(self, prompts: Sequence[list[int]], most: int) -> list[list[int]]:
        first = self.next_stream
        self.next_stream += len(prompts)
        replies: dict[int, list[int]] = {}
        for stream, ids in enumerate(prompts, first):
            replies[stream] = []
            self.engine.open(Opening(stream=stream, prompt=tuple(ids), most=most))
            for start in range(0, len(ids), CHUNK):
                piece = Piece(stream=stream, start=start, end=min(start + CHUNK, len(ids)))
                filled = self.engine.fill([piece]).land()[0]
            assert filled.token is not None, filled
            replies[stream].append(filled.token)
        live = [stream for stream in replies if self.goes_on(replies[stream], most)]
        while live:
            windows = [Window(stream=stream, tokens=(replies[stream][-1],)) for stream in live]
            for landed in self.engine.round(windows).land():
                assert landed.fault is None, landed
                replies[landed.stream] += landed.tokens
            live = [stream for stream in live if self.goes_on(replies[stream], most)]
        for stream in replies:
            self.engine.close(stream)
        return [[token for token in reply if token not in self.ends] for reply in replies.values()]

    def goes_on(self, reply: list[int], most: int) -> bool:
        return len(reply) < most and reply[-1] not in self.ends

    def cuts(self, rows: int) -> list[Cut]:
        return [Cut("prompt", min(CHUNK, rows - start)) for start in range(0, rows, CHUNK)]

    def logits(self, ids: list[int]) -> Tensor:
        return replay(self.engine, ids, self.cuts(len(ids))).logits

    def dropped(self, ids: list[int]) -> dict[int, float]:
        """The main layers' shares; the draft layer's under the number after them."""
        lists: dict[int, Tensor] = {}

        def collect(model: Any, rows: int) -> None:
            for layer, list_RK in model.lists.items():
                lists[layer] = list_RK[rows - 1]

        replay(self.engine, ids, self.cuts(len(ids)), collect)
        return {layer: 1 - int((row >= 0).sum()) / len(ids) for layer, row in lists.items()}

    def draft_agreement(self, ids: list[int]) -> tuple[int, int]:
        engine = self.engine
        ran = replay(engine, ids, self.cuts(len(ids)))
        own = ran.logits.argmax(-1)
        rows = len(ids) - 1
        with torch.inference_mode():
            config = engine.model.config  # type: ignore[attr-defined]
            spec = self.family.state_spec(config, window_rows=WINDOW_ROWS, drafts=True)
            context = engine.info.context
            storage = allocate(
                spec, lanes=1, context=context, kept_bytes=0, device=torch.device("cpu")
            )
            lane = storage.claim(rows).lane
            guesses = []
            for start in range(0, rows, CHUNK):
                stop = min(start + CHUNK, rows)
                run = batch.Run(ids[start + 1 : stop + 1], lane, start)
                built = batch.build([run], storage, prompt=True, tile=engine.tile, context=context)
                hidden_RD = ran.hidden.new_zeros(len(built.ids_R), ran.hidden.shape[1])
                hidden_RD[: stop - start] = ran.hidden[start:stop]
                golden = self.family.golden()
                logits = golden.draft_logits(engine.model, storage.buffers, built, hidden_RD)
                guesses.append(logits[: stop - start].argmax(-1))
        return int((torch.cat(guesses) == own[1:]).sum()), rows
