"""The trainer's own model as a subject of the judge: fp32, no caches, whole forwards."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from tensorfold.tools.tiny.model import Aside, Model, load_official
from tensorfold.tools.tiny.shape import read_shape


class TrainerSubject:
    def __init__(self, folder: Path, ends: frozenset[int], device: str) -> None:
        shape = read_shape(json.loads((folder / "config.json").read_text("utf-8")))
        self.model = Model(shape).to(device).eval()
        load_official(self.model, load_file(folder / "model.safetensors", device=device))
        self.ends, self.device = ends, device

    def _run(self, ids: list[int]) -> tuple[Tensor, list[Aside]]:
        return self.model(torch.tensor([ids], device=self.device))

    @torch.no_grad()
    def logits(self, ids: list[int]) -> Tensor:
        return self.model.lm_head(self._run(ids)[0])[0].float()

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
            hidden, _ = self.model(ids_BT[pick, : int(last.max())])
            rows = hidden[torch.arange(len(open_rows), device=self.device), last - 1]
            choice = self.model.lm_head(rows).argmax(-1)
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

    @torch.no_grad()
    def dropped(self, ids: list[int]) -> dict[int, float]:
        shape, rows = self.model.shape, len(ids)
        hidden, asides = self._run(ids)
        drafted = self.model.draft(torch.tensor([ids], device=self.device), hidden)[1]
        out = {}
        for layer, aside in enumerate([*asides, drafted]):
            if aside.chosen_BTP is not None:
                read = int(aside.chosen_BTP[0, -1].sum()) * shape.pool + rows % shape.pool
                out[layer] = 1 - read / rows
        return out

    @torch.no_grad()
    def draft_agreement(self, ids: list[int]) -> tuple[int, int]:
        hidden, _ = self._run(ids)
        own = self.model.lm_head(hidden[0]).argmax(-1)
        drafted, _ = self.model.draft(torch.tensor([ids[1:]], device=self.device), hidden[:, :-1])
        guess = self.model.lm_head(drafted[0]).argmax(-1)
        return int((guess == own[1:]).sum()), len(ids) - 1
