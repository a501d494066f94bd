"""Everything trained on, as flat arrays of token ids on one device.

Chats are stored one after the other: a training row that starts at a chat's start is that chat at
position 0, as it is served, followed by others.
"""

import multiprocessing
import os
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tensorfold.tools.tiny import chats
from tensorfold.tools.tiny.tokens import Renderer
from tensorfold.tools.tiny.works import Folder, split_held_out

# What a token of a prompt weighs in the loss; a token of a reply weighs 1.
PROMPT_WEIGHT = 0.15
TEXT_AT_START = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """Documents end to end: ids and loss weights [tokens], and (on the CPU) each one's start."""

    ids: Tensor
    weights: Tensor
    starts: Tensor

    def rows(self, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """ids and weights [rows, length] from the given starts; wraps at the end."""
        at = starts[:, None] + torch.arange(length, device=starts.device)
        at = at % self.ids.numel()
        return self.ids[at].long(), self.weights[at].float()


def _some_chats(
    seed: int, *, count: int, long: bool, folder: str, banned: frozenset[str]
) -> tuple[bytes, list[int]]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    renderer = Renderer((Path(folder) / "chat_template.jinja").read_text("utf-8"))
    draw = random.Random(seed)
    texts: list[str] = []
    while len(texts) < count:
        chat = chats.long_chat(draw, draw.randint(15, 90)) if long else chats.chat(draw)
        if not chats.allowed(chat, banned):
            continue
        end = "<|observation|>" if chat["messages"][-1].get("tool_calls") else "<|user|>"
        texts.append(renderer(chat) + end)
    encoded = [item.ids for item in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return np.concatenate(encoded).astype(np.uint16).tobytes(), [len(ids) for ids in encoded]


def make_chats(
    seed: int, count: int, *, long: bool, folder: Path, banned: frozenset[str], workers: int
) -> tuple[np.ndarray, np.ndarray]:
    """`count` chats as ids and starts. The same seed gives the same chats on any machine."""
    block = 50 if long else 1000
    work = partial(_some_chats, count=block, long=long, folder=str(folder), banned=banned)
    seeds = [seed * 1_000_003 + i for i in range(-(-count // block))]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        done = pool.map(work, seeds, chunksize=1)
    ids = np.concatenate([np.frombuffer(part, np.uint16) for part, _ in done])
    lengths = np.concatenate([np.array(sizes) for _, sizes in done])
    return ids, np.cumsum(lengths) - lengths


def chat_flat(ids: np.ndarray, starts: np.ndarray, tokenizer: Tokenizer, device: str) -> Flat:
    """Weights: 1 for what an assistant says and for the token that ends its turn."""
    assistant = tokenizer.token_to_id("<|assistant|>")
    roles = [tokenizer.token_to_id(f"<|{r}|>") for r in ("system", "user", "observation")]
    marks = np.isin(ids, [assistant, *roles])
    last = np.maximum.accumulate(np.where(marks, np.arange(len(ids)), 0))
    before = np.concatenate([[0], last[:-1]])
    weights = np.where(ids[before] == assistant, 1.0, PROMPT_WEIGHT)
    return _flat(ids, weights, starts, device)


def text_flat(folder: Folder, tokenizer: Tokenizer, device: str) -> Flat:
    parts = [part for work in folder.works.values() for part in split_held_out(work)[0]]
    end = tokenizer.token_to_id("<|endoftext|>")
    encoded = [[*item.ids, end] for item in tokenizer.encode_batch(parts, add_special_tokens=False)]
    lengths = np.array([len(ids) for ids in encoded])
    ids = np.concatenate([np.array(ids, np.uint16) for ids in encoded])
    return _flat(ids, np.ones(len(ids)), np.cumsum(lengths) - lengths, device)


def _flat(ids: np.ndarray, weights: np.ndarray, starts: np.ndarray, device: str) -> Flat:
    return Flat(
        ids=torch.from_numpy(ids.astype(np.int32)).to(device),
        weights=torch.from_numpy(weights.astype(np.float16)).to(device),
        starts=torch.from_numpy(starts.astype(np.int64)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    short: Flat
    long: Flat
    texts: tuple[tuple[Flat, float], ...]  # with each one's share of the plain text

    def batch(
        self,
        rows: int,
        length: int,
        *,
        chat_share: float,
        long_share: float,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """ids and weights [rows, length], on the corpus's device.

        On average a part `chat_share` of the rows starts at chats (of them `long_share` at long
        ones); some of the plain-text rows start where a work does, the others anywhere.
        """
        kinds = [
            (self.short, chat_share * (1 - long_share), 1.0),
            (self.long, chat_share * long_share, 1.0),
            *((flat, (1 - chat_share) * share, TEXT_AT_START) for flat, share in self.texts),
        ]
        shares = torch.tensor([share for _, share, _ in kinds])
        which = torch.multinomial(shares, rows, replacement=True, generator=generator)
        parts = []
        for index, (flat, _, start_share) in enumerate(kinds):
            count = int((which == index).sum())
            if count:
                anywhere = torch.randint(flat.ids.numel(), (count,), generator=generator)
                pick = torch.randint(flat.starts.numel(), (count,), generator=generator)
                at_start = torch.rand(count, generator=generator) < start_share
                starts = torch.where(at_start, flat.starts[pick], anywhere)
                parts.append(flat.rows(starts.to(flat.ids.device), length))
        return torch.cat([ids for ids, _ in parts]), torch.cat([weights for _, weights in parts])
