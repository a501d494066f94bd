"""The engine that serves as a subject of the judge: greedy replies in lanes, logits by replay.

An engine that drafts blocks does so beside the replies, and what it accepted is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

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


class Live(NamedTuple):
    """A reply being made: the token not yet run, and the drafts after it."""

    token: int
    drafts: tuple[int, ...] = ()


class EngineSubject:
    """A bundled model behind a backend's engine, in fp32 where that backend runs it so.

    `rounds` are (drafts, accepted ones) of every window of its replies so far.
    """

    def __init__(self, folder: str, backend: str, ends: frozenset[int], *, drafts: int = 0) -> None:
        installed = discover()
        chosen = choose_backend(installed, backend)
        served = find_model(installed, chosen, folder)
        if served.family is None:
            raise StartError(f"backend {backend} runs no family, so it judges no model")
        sizes = {"lanes": LANES, "context": CONTEXT, "chunk_rows": CHUNK}
        sizes |= {"drafts": drafts, "copies": False}
        settings = read(sizes, {})
        order = EngineOrder(settings=settings, folder=served.folder, family=served.family)
        engine = chosen.engine(order)
        assert isinstance(engine, TorchEngine), type(engine)
        self.engine, self.family, self.ends = engine, served.family, ends
        self.rounds: list[tuple[int, int]] = []

    def generate(self, ids: list[int], most: int) -> list[int]:
        return self.generate_many([ids], most)[0]

    def generate_many(self, prompts: list[list[int]], most: int) -> list[list[int]]:
        """Greedy replies, as many side by side as there are lanes."""
        out: list[list[int]] = [[] for _ in prompts]
        waiting, live = list(range(len(prompts)))[::-1], dict[int, Live]()
        while waiting or live:
            while waiting and len(live) < self.engine.info.lanes:
                stream = waiting.pop()
                first = self.begin(stream, prompts[stream], most)
                self.take(stream, (first.token,), first.drafts, out, live, most)
            if live:
                windows = [self.window(stream, own, most - len(out[stream]))
                           for stream, own in live.items()]  # fmt: skip
                for window, landed in zip(windows, self.engine.round(windows).land(), strict=True):
                    assert landed.fault is None, landed
                    used = self.take(landed.stream, landed.tokens, landed.drafts, out, live, most)
                    accepted = min(used, len(landed.tokens) - 1)
                    self.rounds.append((len(window.tokens) - 1, accepted))
        return out

    def window(self, stream: int, own: Live, left: int) -> Window:
        guesses = own.drafts[: max(0, left - 1)]
        return Window(stream=stream, tokens=(own.token, *guesses), want=self.engine.info.drafts)

    def begin(self, stream: int, prompt: list[int], most: int) -> Live:
        greedy = Sampling(temperature=0.0)
        opening = Opening(stream=stream, prompt=tuple(prompt), most=most, sampling=greedy)
        self.engine.open(opening)
        found = None
        for start in range(0, len(prompt), CHUNK):
            end = min(start + CHUNK, len(prompt))
            piece = Piece(stream=stream, start=start, end=end, want=self.engine.info.drafts)
            (filled,) = self.engine.fill([piece]).land()
            assert filled.fault is None, filled
            if filled.token is not None:
                found = Live(filled.token, filled.drafts)
        assert found is not None
        return found

    def take(
        self,
        stream: int,
        tokens: tuple[int, ...],
        drafts: tuple[int, ...],
        out: list[list[int]],
        live: dict[int, Live],
        most: int,
    ) -> int:
        """Add tokens to their reply up to an end, or end that; returns how many it took."""
        for used, token in enumerate(tokens, 1):
            if token not in self.ends:
                out[stream].append(token)
            if token in self.ends or len(out[stream]) == most:
                live.pop(stream, None)
                self.engine.close(stream)
                return used
        live[stream] = Live(tokens[-1], drafts)
        return len(tokens)

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
        with self.picks() as picked:
            self.run(ids, kept)
        if picked:
            return picked_shares(self.engine.model, picked)
        return {
            int(name.rsplit(".", 1)[1]): 1 - len(lists[-1]) / len(ids)
            for name, lists in kept[-1].items()
        }

    @contextmanager
    def picks(self) -> Iterator[list[tuple[int, int]]]:
        """Of every call of `pick_rows`: (rows that its last real row sees, rows picked for it)."""
        found: list[tuple[int, int]] = []
        model: Any = self.engine.model
        whole = model.ops

        def pick_rows(*given: Any) -> tuple[Tensor, Tensor]:
            list_RK, blocks_RB = whole.pick_rows(*given)
            lane_R, visible_R = given[4], given[5]
            last = int((lane_R == lane_R[0]).nonzero().max())
            found.append((int(visible_R[last]), int((list_RK[last] >= 0).sum())))
            return list_RK, blocks_RB

        model.ops = replace(whole, pick_rows=pick_rows)
        try:
            yield found
        finally:
            model.ops = whole

    def draft_agreement(self, ids: list[int]) -> tuple[int, int] | None:
        if self.engine.info.drafts:
            return None
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


def picked_shares(model: Any, picked: list[tuple[int, int]]) -> dict[int, float]:
    """By layer with an index, what the last row sees of compressed rows and does not read."""
    layers = model.config.index_sources
    last = zip(layers, picked[-len(layers) :], strict=True)
    return {layer: 1 - read / seen for layer, (seen, read) in last}
