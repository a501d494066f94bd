"""The training loop: stages of row length under one learning-rate schedule."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
from safetensors.torch import save_file
from torch import Tensor

from tensorfold.tools.tiny.corpus import Corpus
from tensorfold.tools.tiny.lines import Line, Losses, Trainee
from tensorfold.tools.tiny.optim import Optimizer

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
    averaging: float | None = None  # the plan's, unless its steps are fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    stages: tuple[Stage, ...]
    rate: float
    warm_steps: int
    fall: float  # the last part of training, in which the rate falls to a fiftieth
    seconds: float  # the schedule ends early rather than run longer than this
    seed: int
    part: str = "all"  # or "main", or "drafts": what learns
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


def save_tensors(tensors: dict[str, Tensor], fp32: tuple[str, ...], out: Path) -> int:
    """Write model.safetensors in bf16 (fp32 where the official files are); returns its bytes."""
    cast = {
        name: value.detach()
        .to(torch.float32 if name.endswith(fp32) else torch.bfloat16)
        .cpu()
        .contiguous()
        for name, value in tensors.items()
    }
    path = out / "model.safetensors"
    save_file(cast, path, metadata={"format": "pt"})
    return path.stat().st_size


def rate_at(plan: Plan, done: float, step: int) -> float:
    warm = min(1.0, (step + 1) / plan.warm_steps)
    left = min(1.0, (1 - done) / plan.fall)
    return plan.rate * warm * max(left, 0.02)


class Run:
    """One training of a part of a model, its weights' running average, and its notes."""

    def __init__(
        self, trainee: Trainee, line: Line, corpus: Corpus, plan: Plan, out: Path, notes: TextIO
    ) -> None:
        self.trainee, self.line, self.corpus, self.plan = trainee, line, corpus, plan
        self.out, self.notes = out, notes
        named = trainee.learners(plan.part)
        self.weights = [weight for _, weight in named]
        self.device = self.weights[0].device.type
        self.optimizer = Optimizer(named, plain=line.plain, decay=0.05)
        self.average = [weight.detach().clone() for weight in self.weights]
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
                self.trainee.set_compiled(stage.compiled)
            while True:
                done = max(self.progress.tokens / whole, self.seconds() / self.plan.seconds)
                if done >= before / whole:
                    break
                yield stage, done

    def step(self, stage: Stage, done: float) -> None:
        plan, progress = self.plan, self.progress
        for _ in range(stage.pieces):
            ids, weights = self.corpus.batch(
                stage.rows, stage.length + 2, chat_share=stage.chat_share,
                long_share=stage.long_share, generator=self.generator,
            )  # fmt: skip
            compiled = stage.compiled and self.device == "cuda"
            losses = run_losses(self.trainee, plan, ids, weights, compiled)
            (total_of(losses, plan) / stage.pieces).backward()
            self.trainee.balance(losses, plan.balance_speed / stage.pieces)
            progress.tokens += stage.rows * stage.length
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0, foreach=True)
        rate = rate_at(plan, done, progress.steps)
        self.optimizer.step(rate)
        self.trainee.model.zero_grad(set_to_none=True)
        averaging = stage.averaging or plan.averaging
        pace = min(averaging, progress.steps / (progress.steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.weights, 1 - pace)
        progress.steps += 1
        if progress.steps % NOTE_EVERY == 1 or progress.steps < 5:
            progress.loss = float(losses.main.detach())
            progress.draft_loss = float(losses.draft.detach())
            self.note(stage, rate, losses)

    def note(self, stage: Stage, rate: float, losses: Losses) -> None:
        loads = [load for load in losses.loads_E if load is not None]
        note = {
            "step": self.progress.steps,
            "tokens": self.progress.tokens,
            "length": stage.length,
            "rate": round(rate, 6),
            "loss": round(self.progress.loss, 4),
            "draft": round(self.progress.draft_loss, 4),
            "ranking": round(float(torch.as_tensor(losses.ranking).detach()), 3),
            "fullest expert": [round(float(load.max() * len(load)), 2) for load in loads],
            **{name: round(float(value), 3) for name, value in losses.notes.items()},
            "seconds": round(self.seconds(), 1),
        }
        self.notes.write(json.dumps(note) + "\n")
        self.notes.flush()
        if self.progress.steps % (5 * NOTE_EVERY) == 1 or self.progress.steps < 5:
            print(note, flush=True)
        if time.monotonic() - self.saved > SAVE_EVERY:
            self.saved = time.monotonic()
            save_tensors(self.averaged(), self.line.fp32, self.out)

    def averaged(self) -> dict[str, Tensor]:
        """Official tensors with the averaged weights in place of the last ones."""
        last = [weight.detach().clone() for weight in self.weights]
        self.put(self.average)
        tensors = {name: value.clone() for name, value in self.trainee.official().items()}
        self.put(last)
        return tensors

    @torch.no_grad()
    def put(self, weights: list[Tensor]) -> None:
        torch._foreach_copy_(self.weights, weights)


def run_losses(
    trainee: Trainee, plan: Plan, ids: Tensor, weights: Tensor, compiled: bool
) -> Losses:
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
        return trainee.losses(ids, weights, plan.part, compiled=compiled)


def total_of(losses: Losses, plan: Plan) -> Tensor:
    if plan.part == "drafts":
        return losses.draft
    total = losses.main + plan.ranking_weight * losses.ranking
    return total if plan.part == "main" else total + plan.draft_weight * losses.draft


def rehearse(trainee: Trainee, corpus: Corpus, plans: list[Plan], rows: int) -> list[str]:
    """One uncompiled step's work of every stage; a loss that is not finite is a ValueError."""
    said = []
    for plan in plans:
        for stage in plan.stages:
            start = time.monotonic()
            ids, weights = corpus.batch(
                min(rows, stage.rows), stage.length + 2, chat_share=0.5, long_share=0.5,
                generator=torch.Generator().manual_seed(0),
            )  # fmt: skip
            total = total_of(run_losses(trainee, plan, ids, weights, False), plan)
            total.backward()
            trainee.model.zero_grad(set_to_none=True)
            total = total.detach()
            words = f"{plan.part} at rows of {stage.length}: loss {float(total):.3f}"
            if not total.isfinite():
                raise ValueError(words)
            said.append(f"{words}, {time.monotonic() - start:.1f} s")
    return said


def train(
    trainee: Trainee, line: Line, corpus: Corpus, plan: Plan, out: Path, log: Path
) -> tuple[Progress, int]:
    """Train by the plan, keep the averaged weights in the trainee and in `out`; returns the file's
    bytes too. Notes are added to `log`."""
    with log.open("a", encoding="utf-8") as notes:
        run = Run(trainee, line, corpus, plan, out, notes)
        for stage, done in run.steps():
            run.step(stage, done)
    run.progress.seconds = run.seconds()
    run.put(run.average)
    return run.progress, save_tensors(trainee.official(), line.fp32, out)
