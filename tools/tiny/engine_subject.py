"""The engine that serves as a subject of the judge: greedy replies in lanes, logits by replay."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine import batch
from tensorfold.core.engine.replay import Replayed, replay
from tensorfold.core.engine.state import allocate
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Sampling, Window
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import Cut
from tensorfold.core.settings import read
from tensorfold.plugins.choose import choose_backend
from tensorfold.plugins.manager import discover
from tensorfold.tools.models import find_model

LANES = 8
CONTEXT = 8192
CHUNK = 512


class EngineSubject:
    """A bundled model behind a backend's engine, in fp32 where that backend runs it so."""

    def __init__(self, folder: str, backend: str, ends: frozenset[int]) -> None:
        installed = discover()
        chosen = choose_backend(installed, backend)
        served = find_model(installed, chosen, folder)
        if served.family is None:
            raise StartError(f"backend {backend} runs no family, so it judges no model")
        settings = read({"lanes": LANES, "context": CONTEXT, "chunk_rows": CHUNK}, {})
        order = EngineOrder(settings=settings, folder=served.folder, family=served.family)
        engine = chosen.engine(order)
        assert isinstance(engine, TorchEngine), type(engine)
        self.engine, self.family, self.ends = engine, served.family, ends

    def generate(self, ids: list[int], most: int) -> list[int]:
        return self.generate_many([ids], most)[0]

    def generate_many(self, prompts: list[list[int]], most: int) -> list[list[int]]:
        """Greedy replies, as many side by side as there are lanes."""
        out: list[list[int]] = [[] for _ in prompts]
        waiting, live = list(range(len(prompts)))[::-1], dict[int, int]()
        while waiting or live:
            while waiting and len(live) < self.engine.info.lanes:
                stream = waiting.pop()
                self.take(stream, self.begin(stream, prompts[stream], most), out, live, most)
            if live:
                windows = [Window(stream=s, tokens=(token,)) for s, token in live.items()]
                for landed in self.engine.round(windows).land():
                    assert landed.fault is None, landed
                    self.take(landed.stream, landed.tokens[0], out, live, most)
        return out

    def begin(self, stream: int, prompt: list[int], most: int) -> int:
        greedy = Sampling(temperature=0.0)
        opening = Opening(stream=stream, prompt=tuple(prompt), most=most, sampling=greedy)
        self.engine.open(opening)
        token = None
        for start in range(0, len(prompt), CHUNK):
            piece = Piece(stream=stream, start=start, end=min(start + CHUNK, len(prompt)))
            (filled,) = self.engine.fill([piece]).land()
            assert filled.fault is None, filled
            token = filled.token
        assert token is not None
        return token

    def take(
        self, stream: int, token: int, out: list[list[int]], live: dict[int, int], most: int
    ) -> None:
        """Add a token to its reply, or end that."""
        if token not in self.ends:
            out[stream].append(token)
        if token in self.ends or len(out[stream]) == most:
            live.pop(stream, None)
            self.engine.close(stream)
        else:
            live[stream] = token

    def run(self, ids: list[int], keep: list[dict[str, list[set[int]]]] | None = None) -> Replayed:
        cuts = [Cut("prompt", min(CHUNK, len(ids) - at)) for at in range(0, len(ids), CHUNK)]
        rules = self.family.golden()
        if keep is None:
            return replay(self.engine, ids, cuts)
        return replay(
            self.engine, ids, cuts, lambda model, rows: keep.append(rules.selections(model, rows))
        )

    def logits(self, ids: list[int]) -> Tensor:
        return self.run(ids).logits

    def dropped(self, ids: list[int]) -> dict[int, float]:
        kept: list[dict[str, list[set[int]]]] = []
        self.run(ids, kept)
        return {
            int(name.rsplit(".", 1)[1]): 1 - len(lists[-1]) / len(ids)
            for name, lists in kept[-1].items()
        }

    def draft_agreement(self, ids: list[int]) -> tuple[int, int]:
        engine, rows = self.engine, len(ids) - 1
        with torch.inference_mode():
            ran = self.run(ids)
            config = engine.model.config  # type: ignore[attr-defined]
            spec = self.family.state_spec(config, window_rows=1, drafts=True)
            storage = allocate(
                spec, lanes=1, context=CONTEXT, kept_bytes=0, device=ran.hidden.device
            )
            seat = storage.claim(rows)
            built = batch.build(
                [batch.Run(ids[1:], seat.lane, 0)],
                storage,
                prompt=True,
                tile=engine.tile,
                context=CONTEXT,
            )
            hidden_RD = ran.hidden.new_zeros(len(built.ids_R), ran.hidden.shape[1])
            hidden_RD[:rows] = ran.hidden[:rows]
            rules = self.family.golden()
            guess = rules.draft_logits(engine.model, storage.buffers, built, hidden_RD)[:rows]
        return int((guess.argmax(-1) == ran.logits[1:].argmax(-1)).sum()), rows
