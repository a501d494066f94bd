"""The training loop: stages of row length under one learning-rate schedule."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
from safetensors.torch import save_file
from torch import Tensor

from tensorfold.tools.tiny.corpus import Corpus
from tensorfold.tools.tiny.model import Aside, Model, loss_of, official_tensors
from tensorfold.tools.tiny.optim import Optimizer

FP32 = ("hc_attn_base", "hc_attn_scale", "hc_ffn_base", "hc_ffn_scale", "A_log", "dt_bias",
        "e_score_correction_bias")  # fmt: skip
SAVE_EVERY = 60.0  # seconds between the checkpoints of a run that may be cut short
NOTE_EVERY = 50  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`pieces` batches of `rows` rows a step. A compiled stage pays a minute or two at first."""

    rows: int
    length: int
    pieces: int
    tokens: int
    chat_share: float
    long_share: float
    compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    stages: tuple[Stage, ...]
    rate: float
    warm_steps: int
    fall: float  # the last part of training, in which the rate falls to a fiftieth
    seconds: float  # the schedule ends early rather than run longer than this
    seed: int
    draft_weight: float = 0.25
    ranking_weight: float = 0.1
    balance_speed: float = 1e-3
    averaging: float = 0.998


@dataclass(slots=True)
class Progress:
    """What the card says of a run."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    draft_loss: float = 0.0


def save_tensors(tensors: dict[str, Tensor], out: Path) -> int:
    """Write model.safetensors in bf16 (fp32 where the official files are); returns its bytes."""
    cast = {
        name: value.detach()
        .to(torch.float32 if name.endswith(FP32) else torch.bfloat16)
        .cpu()
        .contiguous()
        for name, value in tensors.items()
    }
    path = out / "model.safetensors"
    save_file(cast, path, metadata={"format": "pt"})
    return path.stat().st_size


def losses_of(
    model: Model, loss_of: Callable[..., Tensor], ids: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, list[Aside]]:
    """(main, draft, ranking) losses and the layers' asides for ids [B, T + 2]."""
    num_T = ids.shape[1] - 2
    hidden, asides = model(ids[:, :num_T])
    head = model.lm_head.weight
    main = loss_of(hidden, head, ids[:, 1 : num_T + 1], weights[:, 1 : num_T + 1])
    drafted, aside = model.draft(ids[:, 1 : num_T + 1], hidden)
    draft = loss_of(drafted, head, ids[:, 2:], weights[:, 2:])
    asides = [*asides, aside]
    ranking = sum(a.ranking_loss for a in asides if a.ranking_loss is not None)
    return main, draft, ranking, asides


@torch.no_grad()
def balance_experts(model: Model, asides: list[Aside], speed: float) -> None:
    """Nudge each router's bias toward even use of its experts."""
    for layer, aside in zip(model.layers, asides, strict=True):
        if aside.load_E is not None:
            bias = layer.mlp.gate.e_score_correction_bias
            bias += speed * torch.sign(1 / len(bias) - aside.load_E)


def rate_at(plan: Plan, done: float, step: int) -> float:
    warm = min(1.0, (step + 1) / plan.warm_steps)
    left = min(1.0, (1 - done) / plan.fall)
    return plan.rate * warm * max(left, 0.02)


def set_compiled(model: Model, on: bool) -> None:
    torch._dynamo.config.recompile_limit = 64
    for layer in model.layers:
        if on:
            layer.compile(dynamic=False)
        else:
            layer._compiled_call_impl = None


class Run:
    """One training of a model, its weights' running average, and its notes."""

    def __init__(self, model: Model, corpus: Corpus, plan: Plan, out: Path, notes: TextIO) -> None:
        self.model, self.corpus, self.plan, self.out, self.notes = model, corpus, plan, out, notes
        self.device = next(model.parameters()).device.type
        self.optimizer = Optimizer(model, decay=0.05)
        on_gpu = self.device == "cuda"
        self.compiled_loss = torch.compile(loss_of, dynamic=False) if on_gpu else loss_of
        self.average = [p.detach().clone() for p in model.parameters()]
        self.generator = torch.Generator().manual_seed(plan.seed)
        self.begin = self.saved = time.monotonic()
        self.progress = Progress()

    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def steps(self) -> Iterator[tuple[Stage, float]]:
        """Each step's stage and how much of the schedule is done before it."""
        whole, before = sum(stage.tokens for stage in self.plan.stages), 0
        for stage in self.plan.stages:
            before += stage.tokens
            if self.device == "cuda":
                set_compiled(self.model, stage.compiled)
            while True:
                done = max(self.progress.tokens / whole, self.seconds() / self.plan.seconds)
                if done >= before / whole:
                    break
                yield stage, done

    def step(self, stage: Stage, done: float) -> None:
        plan, progress = self.plan, self.progress
        loss = self.compiled_loss if stage.compiled else loss_of
        for _ in range(stage.pieces):
            ids, weights = self.corpus.batch(
                stage.rows, stage.length + 2, chat_share=stage.chat_share,
                long_share=stage.long_share, generator=self.generator,
            )  # fmt: skip
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                main, draft, ranking, asides = losses_of(self.model, loss, ids, weights)
            total = main + plan.draft_weight * draft + plan.ranking_weight * ranking
            (total / stage.pieces).backward()
            balance_experts(self.model, asides, plan.balance_speed / stage.pieces)
            progress.tokens += stage.rows * stage.length
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        rate = rate_at(plan, done, progress.steps)
        self.optimizer.step(rate)
        self.model.zero_grad(set_to_none=True)
        pace = min(plan.averaging, progress.steps / (progress.steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self.average, list(self.model.parameters()), 1 - pace)
        progress.steps += 1
        if progress.steps % NOTE_EVERY == 1 or progress.steps < 5:
            progress.loss, progress.draft_loss = float(main.detach()), float(draft.detach())
            self.note(stage, rate, float(ranking.detach()), asides)

    def note(self, stage: Stage, rate: float, ranking: float, asides: list[Aside]) -> None:
        loads = [a.load_E for a in asides if a.load_E is not None]
        note = {
            "step": self.progress.steps,
            "tokens": self.progress.tokens,
            "length": stage.length,
            "rate": round(rate, 6),
            "loss": round(self.progress.loss, 4),
            "draft": round(self.progress.draft_loss, 4),
            "ranking": round(ranking, 3),
            "fullest expert": [round(float(load.max() * len(load)), 2) for load in loads],
            "seconds": round(self.seconds(), 1),
        }
        self.notes.write(json.dumps(note) + "\n")
        self.notes.flush()
        if self.progress.steps % (5 * NOTE_EVERY) == 1 or self.progress.steps < 5:
            print(note, flush=True)
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.saved = time.monotonic()
            save_tensors(self.averaged(), self.out)

    def averaged(self) -> dict[str, Tensor]:
        """Official tensors with the averaged weights in place of the last ones."""
        last = [p.detach().clone() for p in self.model.parameters()]
        self.put(self.average)
        tensors = {name: value.clone() for name, value in official_tensors(self.model).items()}
        self.put(last)
        return tensors

    @torch.no_grad()
    def put(self, weights: list[Tensor]) -> None:
        torch._foreach_copy_(list(self.model.parameters()), weights)


def train(model: Model, corpus: Corpus, plan: Plan, out: Path, log: Path) -> tuple[Progress, int]:
    """Train `model`, keep its averaged weights in it and in `out`; returns the file's bytes too."""
    with log.open("w", encoding="utf-8") as notes:
        run = Run(model, corpus, plan, out, notes)
        for stage, done in run.steps():
            run.step(stage, done)
    run.progress.seconds = run.seconds()
    run.put(run.average)
    return run.progress, save_tensors(official_tensors(model), out)
