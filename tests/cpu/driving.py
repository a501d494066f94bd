"""Driving a torch engine by hand: engines over the golden model, replies, and the state after."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tensorfold.backends.cpu_reference.backend import open_engine
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.engine import batch, checks
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.state import Seat
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import (
    Engine,
    Filled,
    Landed,
    Opening,
    Piece,
    Sampling,
    Saved,
    TokenLogprob,
    Window,
)
from tensorfold.core.keyed import token_sha256
from tensorfold.core.settings import read
from tensorfold.core.state_spec import Ring
from tensorfold.families.glm53.plugin import FAMILY

GOLDEN = Path(__file__).parents[1] / "data" / "glm53"
CKPT = GOLDEN / "ckpt"
GRID = 64
POOL = 4
VOCAB = 160


def opened(
    folder: Path = CKPT, *, verdict: Callable[..., bool] = checks.holds, **flags: Any
) -> TorchEngine:
    sizes = {"lanes": 8, "context": 320, "chunk_rows": 320, "window_rows": 8, "threads": 1}
    sizes |= {"drafts": 0, "copies": False} | flags
    order = EngineOrder(settings=read(sizes, {}), folder=folder, family=FAMILY)
    return open_engine(order, verdict=verdict)


def variant(
    folder: Path,
    text: Mapping[str, Any],
    change: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor,
) -> Path:
    """A copy of the golden model's checkpoint with other config values and tensors."""
    config = json.loads((CKPT / "config.json").read_text())
    config["text_config"] |= text
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(CKPT / "model.safetensors")
    changed = {name: change(name, tensor).contiguous() for name, tensor in tensors.items()}
    save_file(changed, folder / "model.safetensors")
    return folder


def some_tokens(count: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, (count,), generator=generator).tolist()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a reply depends on."""

    prompt: tuple[int, ...]
    most: int = 6
    sampling: Sampling = Sampling()
    seed: int = 0
    logprobs: int | None = 2


@dataclass(kw_only=True)
class Told:
    """A reply as it came: its tokens, their log-probabilities, and how it was kept or lost."""

    stream: int
    asked: Asked
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    cached: int = 0
    lost: str | None = None
    fault: str | None = None

    @property
    def done(self) -> bool:
        return self.fault is not None or len(self.tokens) >= self.asked.most

    def proof(self) -> tuple[str, tuple[TokenLogprob, ...]]:
        """What no company may change: the tokens' hash and every log-probability's bits."""
        assert self.fault is None, self.fault
        return token_sha256(self.tokens), tuple(self.logprobs)


def begin(
    engine: Engine,
    stream: int,
    asked: Asked,
    *,
    marks: Sequence[int] = (),
    resume: Saved | None = None,
) -> Told:
    opening = Opening(
        stream=stream,
        prompt=asked.prompt,
        most=asked.most,
        sampling=asked.sampling,
        seed=asked.seed,
        logprobs=asked.logprobs,
        marks=tuple(marks),
        resume=resume,
    )
    said = engine.open(opening)
    return Told(stream=stream, asked=asked, cached=said.cached, lost=said.lost)


def take(told: Told, result: Filled | Landed) -> None:
    assert result.stream == told.stream
    if result.fault is not None:
        assert result == type(result)(stream=told.stream, fault=result.fault)
        told.fault = result.fault
    elif isinstance(result, Landed):
        told.tokens += result.tokens
        told.logprobs += result.logprobs
    else:
        if result.saved is not None:
            told.saved.append(result.saved)
        if result.token is not None:
            told.tokens.append(result.token)
        if result.logprob is not None:
            told.logprobs.append(result.logprob)


def fill(engine: Engine, *pieces: tuple[Told, int, int]) -> None:
    """One forward over pieces (told, start, end)."""
    asked = [Piece(stream=told.stream, start=start, end=end) for told, start, end in pieces]
    for (told, _, _), result in zip(pieces, engine.fill(asked).land(), strict=True):
        take(told, result)


def fill_all(engine: Engine, told: Told, cuts: Sequence[int] = ()) -> None:
    """The rest of a prompt, cut after the given positions."""
    ends = [cut for cut in sorted(cuts) if told.cached < cut < len(told.asked.prompt)]
    start = told.cached
    for end in [*ends, len(told.asked.prompt)]:
        if told.fault is None:
            fill(engine, (told, start, end))
        start = end


def step(
    engine: Engine, tolds: Sequence[Told], guesses: Mapping[int, Sequence[int]] | None = None
) -> None:
    """One round; `guesses` by stream follow each pending token."""
    windows = [
        Window(stream=told.stream, tokens=(told.tokens[-1], *(guesses or {}).get(told.stream, ())))
        for told in tolds
    ]
    for told, result in zip(tolds, engine.round(windows).land(), strict=True):
        take(told, result)


def alone(engine: Engine, asked: Asked, stream: int = 10_000) -> Told:
    """A whole reply with nobody else on the machine, one row a round."""
    told = begin(engine, stream, asked)
    fill_all(engine, told)
    while not told.done:
        step(engine, [told])
    engine.close(stream)
    return told


def state_of(engine: TorchEngine, stream: int) -> dict[str, Tensor]:
    """Every byte of a stream's state: of rings, the rows of the pool that is still open."""
    held = engine.streams[stream]
    found = stream_state(engine.storage, held.seat, held.rows)
    return live_rows(engine, found, held.rows)


def live_rows(engine: TorchEngine, state: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    for entry in engine.storage.spec.entries:
        if isinstance(entry, Ring):
            places = [place % entry.rows for place in range(rows - rows % POOL, rows)]
            state[entry.name] = state[entry.name][places]
    return state


def same_state(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


@torch.inference_mode()
def claim(engine: TorchEngine, tokens: int) -> Seat:
    return engine.storage.claim(tokens)


@dataclass(kw_only=True)
class Ran:
    """One forward's rows by run: hidden and logits."""

    hidden: list[Tensor]
    logits: list[Tensor]


@torch.inference_mode()
def forward(engine: TorchEngine, runs: Sequence[Run], *, prompt: bool) -> Ran:
    """The model over runs in claimed lanes; window rows all count."""
    rows = batch.build(
        runs, engine.storage, prompt=prompt, tile=engine.tile, context=engine.info.context
    )
    hidden_RD = engine.model.prompt(rows) if prompt else engine.model.window(rows)
    if not prompt:
        engine.model.settle(rows, rows.count_B)
    logits_RV = engine.model.logits(hidden_RD)
    counts = [len(run.tokens) for run in runs]
    real = sum(counts)
    return Ran(
        hidden=list(hidden_RD[:real].split(counts)), logits=list(logits_RV[:real].split(counts))
    )
