"""Everything trained on, as flat arrays of token ids: gathered, kept in a file, on one device.

Chats are stored one after the other: a training row that starts at a chat's start is that chat at
position 0, as it is served, followed by others.
"""

import json
import multiprocessing
import os
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tensorfold.tools.tiny import chats
from tensorfold.tools.tiny.lines import Line, line_called
from tensorfold.tools.tiny.tokens import Renderer, Words, id_of
from tensorfold.tools.tiny.works import Folder, one_hash, split_held_out

# What a token of a prompt weighs in the loss; a token of a reply weighs 1.
PROMPT_WEIGHT = 0.15
TEXT_AT_START = 0.25
SHOWN = 12  # works listed by name; of more, one hash over the folder


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
    seed: int, *, count: int, long: bool, folder: str, banned: frozenset[str], line: str
) -> tuple[bytes, list[int]]:
    own = line_called(line)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    renderer = Renderer((Path(folder) / "chat_template.jinja").read_text("utf-8"))
    draw = random.Random(seed)
    texts: list[str] = []
    while len(texts) < count:
        chat = chats.long_chat(draw, draw.randint(15, 90)) if long else chats.chat(draw)
        if not chats.allowed(chat, banned):
            continue
        texts.append(renderer(own.dress(chat, draw)) + own.tail(chat))
    encoded = [item.ids for item in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return np.concatenate(encoded).astype(np.uint16).tobytes(), [len(ids) for ids in encoded]


def make_chats(
    seed: int,
    count: int,
    *,
    long: bool,
    folder: Path,
    banned: frozenset[str],
    line: Line,
    workers: int,
) -> tuple[np.ndarray, np.ndarray]:
    """`count` chats as ids and lengths. The same seed gives the same chats on any machine."""
    block = 50 if long else 1000
    work = partial(
        _some_chats, count=block, long=long, folder=str(folder), banned=banned, line=line.name
    )
    seeds = [seed * 1_000_003 + i for i in range(-(-count // block))]
    if workers == 1:
        done = [work(one) for one in seeds]
    else:
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            done = pool.map(work, seeds, chunksize=1)
    ids = np.concatenate([np.frombuffer(part, np.uint16) for part, _ in done])
    return ids, np.concatenate([np.array(sizes, np.uint32) for _, sizes in done])


def text_ids(folder: Folder, tokenizer: Tokenizer, words: Words) -> tuple[np.ndarray, np.ndarray]:
    """A folder's parts that are trained on, as ids and lengths."""
    parts = [part for work in folder.works.values() for part in split_held_out(work)[0]]
    end = id_of(tokenizer, words.end_of_text)
    encoded = [[*item.ids, end] for item in tokenizer.encode_batch(parts, add_special_tokens=False)]
    ids = np.concatenate([np.array(ids, np.uint16) for ids in encoded])
    return ids, np.array([len(ids) for ids in encoded], np.uint32)


def about_text(folder: Folder) -> dict[str, Any]:
    """What the card says of a folder."""
    return {
        "name": folder.name,
        "licence": folder.licence,
        "works": len(folder.works),
        "characters": sum(map(len, folder.works.values())),
        "share": folder.share,
        "sha256": folder.sha256 if len(folder.works) <= SHOWN else one_hash(folder),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """ids and lengths by name: "short" and "long" chats, and "text.N" of the texts told of."""

    arrays: dict[str, tuple[np.ndarray, np.ndarray]]
    texts: list[dict[str, Any]]

    def save(self, path: Path) -> None:
        """Compressed; other machines can read it."""
        flat = {"about": np.frombuffer(json.dumps(self.texts).encode(), np.uint8)}
        for name, (ids, lengths) in self.arrays.items():
            flat |= {f"{name}/ids": ids, f"{name}/lengths": lengths}
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **flat)


def read_gathered(path: Path) -> Gathered:
    with np.load(path) as flat:
        names = [name.removesuffix("/ids") for name in flat if name.endswith("/ids")]
        arrays = {name: (flat[f"{name}/ids"], flat[f"{name}/lengths"]) for name in names}
        return Gathered(arrays=arrays, texts=json.loads(flat["about"].tobytes()))


def chat_weights(ids: np.ndarray, tokenizer: Tokenizer, words: Words) -> np.ndarray:
    """1 for what an assistant says and for the token that ends its turn."""
    assistant = id_of(tokenizer, words.assistant)
    marks = np.isin(ids, [assistant, *(id_of(tokenizer, token) for token in words.others)])
    last = np.maximum.accumulate(np.where(marks, np.arange(len(ids)), 0))
    before = np.concatenate([[0], last[:-1]])
    return np.where(ids[before] == assistant, 1.0, PROMPT_WEIGHT)


def _flat(ids: np.ndarray, weights: np.ndarray, lengths: np.ndarray, device: str) -> Flat:
    starts = np.cumsum(lengths.astype(np.int64)) - lengths
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


def corpus_of(gathered: Gathered, tokenizer: Tokenizer, words: Words, device: str) -> Corpus:
    def chats_named(name: str) -> Flat:
        ids, lengths = gathered.arrays[name]
        return _flat(ids, chat_weights(ids, tokenizer, words), lengths, device)

    texts = []
    for number, about in enumerate(gathered.texts):
        ids, lengths = gathered.arrays[f"text.{number}"]
        texts.append((_flat(ids, np.ones(len(ids)), lengths, device), about["share"]))
    return Corpus(short=chats_named("short"), long=chats_named("long"), texts=tuple(texts))
