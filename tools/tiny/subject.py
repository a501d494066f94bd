"""The trainer's own model as a subject of the judge: fp32, no caches, whole forwards."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from tensorfold.tools.tiny.lines import line_in, load_official


class TrainerSubject:
    def __init__(self, folder: Path, ends: frozenset[int], device: str) -> None:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        self.trainee = line_in(folder).trainee(config, folder)
        load_official(self.trainee.official(), load_file(folder / "model.safetensors"))
        self.trainee.model.to(device).eval()
        self.ends, self.device = ends, device
        self.rounds: list[tuple[int, int]] = []

    @torch.no_grad()
    def logits(self, ids: list[int]) -> Tensor:
        hidden = self.trainee.hidden(torch.tensor([ids], device=self.device))
        return self.trainee.logits(hidden)[0].float()

    def generate(self, ids: list[int], most: int) -> list[int]:
        return self.generate_many([ids], most)[0]

    @torch.no_grad()
    def generate_many(self, prompts: list[list[int]], most: int) -> list[list[int]]:
        """Greedy replies side by side; rows to the right of a prompt never reach it."""
        lengths = torch.tensor([len(ids) for ids in prompts], device=self.device)
        width = int(lengths.max()) + most
        ids_BT = torch.zeros(len(prompts), width, dtype=torch.long, device=self.device)
        for row, ids in zip(ids_BT, prompts, strict=True):
            row[: len(ids)] = torch.tensor(ids, device=self.device)
        out: list[list[int]] = [[] for _ in prompts]
        open_rows = list(range(len(prompts)))
        for _ in range(most):
            pick = torch.tensor(open_rows, device=self.device)
            last = lengths[pick]
            hidden = self.trainee.hidden(ids_BT[pick, : int(last.max())])
            rows = hidden[torch.arange(len(open_rows), device=self.device), last - 1]
            choice = self.trainee.logits(rows).argmax(-1)
            ids_BT[pick, last] = choice
            lengths[pick] += 1
            still = []
            for index, token in zip(open_rows, choice.tolist(), strict=True):
                if token not in self.ends:
                    out[index].append(token)
                    still.append(index)
            open_rows = still
            if not open_rows:
                break
        return out

    def dropped(self, ids: list[int]) -> dict[int, float]:
        return self.trainee.dropped(ids)

    def draft_agreement(self, ids: list[int]) -> tuple[int, int] | None:
        return self.trainee.draft_agreement(ids)
