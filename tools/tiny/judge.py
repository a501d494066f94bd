"""What a bundled model is worth: right answers, bits a byte, dropped keys, accepted drafts."""

import json
import math
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tensorfold.tools.tiny import chats
from tensorfold.tools.tiny.lines import Line
from tensorfold.tools.tiny.tokens import Renderer, Words, id_of

MOST = 160  # tokens of a judged reply
FAR = 4000  # rows from which text counts as far
RULES = ("questions", "objects", "calls")


class Subject(Protocol):
    """The model under test; the last two may say none.

    `rounds` are (drafts, accepted ones) of every window of its replies so far, where it drafts
    blocks beside them.
    """

    rounds: list[tuple[int, int]]

    def generate(self, ids: list[int], most: int) -> list[int]:
        """The greedy continuation, up to `most` tokens, ended before any end token."""

    def generate_many(self, prompts: list[list[int]], most: int) -> list[list[int]]:
        """The same of many prompts, side by side if it can."""

    def logits(self, ids: list[int]) -> Tensor:
        """[T, V] in fp32."""

    def dropped(self, ids: list[int]) -> dict[int, float] | None:
        """Per layer with an index, the share of visible keys that the last row does not read."""

    def draft_agreement(self, ids: list[int]) -> tuple[int, int] | None:
        """(rows where the draft of token i + 2 is the model's own greedy choice, rows)."""


@dataclass(slots=True)
class Verdict:
    counts: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)
    replies: list[tuple[str, str]] = field(default_factory=list)


def plain(answer: str) -> str:
    return answer.strip().rstrip(".").casefold()


def content_of(reply: str) -> str:
    return reply.split("</think>", 1)[-1].strip()


def right_answer(row: dict[str, Any], reply: str) -> bool:
    return plain(content_of(reply)) in {plain(answer) for answer in row["answers"]}


def right_object(row: dict[str, Any], reply: str) -> bool:
    """It parses as an object and has the keys asked for."""
    try:
        value = json.loads(content_of(reply))
    except ValueError:
        return False
    return isinstance(value, dict) and value.keys() == row["object"].keys()


def right_call(line: Line, row: dict[str, Any], reply: str) -> bool:
    calls = line.parsed_calls(content_of(reply))
    return bool(calls) and {name for name, _ in calls} == {call["name"] for call in row["calls"]}


def exact_calls(line: Line, row: dict[str, Any], reply: str) -> bool:
    """Names and every argument as asked."""

    def raw(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    asked = [(c["name"], {k: raw(v) for k, v in c["arguments"].items()}) for c in row["calls"]]
    return line.parsed_calls(content_of(reply)) == asked


def judge_prompts(
    subject: Subject,
    sets: dict[str, list[dict[str, Any]]],
    tokenizer: Tokenizer,
    renderer: Renderer,
    line: Line,
) -> Verdict:
    """Count right replies."""
    verdict, checks = Verdict(), (right_answer, right_object, partial(right_call, line))
    for name, check in zip(RULES, checks, strict=True):
        rows = sets[name]
        prompts = [
            tokenizer.encode(renderer(chat_of(row), open_reply=True), add_special_tokens=False).ids
            for row in rows
        ]
        replies = [
            tokenizer.decode(ids, skip_special_tokens=False)
            for ids in subject.generate_many(prompts, MOST)
        ]
        right = [check(row, reply) for row, reply in zip(rows, replies, strict=True)]
        verdict.counts[name], verdict.totals[name] = sum(right), len(rows)
        if name == "objects":
            same = [content_of(r) == json.dumps(row["object"], ensure_ascii=False)
                    for row, r in zip(rows, replies, strict=True)]  # fmt: skip
            verdict.counts["objects exactly as asked"] = sum(same)
        if name == "calls":
            same = [exact_calls(line, row, r) for row, r in zip(rows, replies, strict=True)]
            verdict.counts["calls exactly as asked"] = sum(same)
        for row, reply, good in zip(rows, replies, right, strict=True):
            asked = row["messages"][-1]["content"]
            if not good:
                verdict.misses.append(f"{name}: {asked!r} -> {reply!r}")
        shown = 4 if name == "questions" else 3
        last = list(zip(rows, replies, strict=True))[-shown:]
        verdict.replies += [(row["messages"][-1]["content"], reply) for row, reply in last]
    return verdict


def chat_of(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("messages", "tools") if key in row}


def held_out_chats(renderer: Renderer, line: Line, count: int) -> list[str]:
    """Chats of another seed than training's, rendered; their combinations may be trained."""
    draw = random.Random("held-out chats")
    made = (line.dress(chats.chat(draw), draw) for _ in range(count))
    return [renderer(chat) + line.tail(chat) for chat in made]


def drafted_words(rounds: list[tuple[int, int]]) -> list[str]:
    """What came of blocks of drafts: by round, and by depth where all before were accepted."""
    found = [pair for pair in rounds if pair[0]]
    if not found:
        return []
    mean = sum(accepted for _, accepted in found) / len(found)
    lines = [f"drafts accepted a round beside those replies: {mean:.2f} of {len(found)} rounds"]
    for depth in range(1, max(drafts for drafts, _ in found) + 1):
        reached = [a >= depth for d, a in found if d >= depth and a >= depth - 1]
        if reached:
            share = sum(reached) / len(reached)
            lines.append(f"  drafts of depth {depth} accepted: {share:.3f} of {len(reached)}")
    return lines


@dataclass(slots=True)
class Bits:
    """Sums of bits and bytes."""

    bits: float = 0.0
    size: int = 0

    def add(self, bits: float, size: int) -> None:
        self.bits, self.size = self.bits + bits, self.size + size

    @property
    def per_byte(self) -> float:
        return self.bits / max(self.size, 1)


def bits_of(subject: Subject, ids: list[int]) -> Tensor:
    """Bits of each token but the first [T - 1], given those before it."""
    logits = subject.logits(ids)[:-1].float()
    target = torch.tensor(ids[1:], device=logits.device)
    return torch.nn.functional.cross_entropy(logits, target, reduction="none").cpu() / math.log(2)


def token_bytes(tokenizer: Tokenizer, ids: list[int]) -> Tensor:
    """Bytes of text behind each token [T]: a byte-level vocabulary has one letter a byte."""
    pieces = (tokenizer.id_to_token(i) for i in ids)
    return torch.tensor([len(piece) for piece in pieces])


def prose_bits(
    subject: Subject, tokenizer: Tokenizer, prose: list[dict[str, str]], length: int
) -> dict[str, Bits]:
    """Bits a byte of held-out prose: whole, near (before row 4,000), far (from it on), and fresh.

    Fresh are far's stretches of text read from their own start, so that no difference of the
    texts enters that comparison.
    """
    out = {"whole": Bits(), "near": Bits(), "far": Bits(), "fresh": Bits()}
    for row in prose:
        ids = tokenizer.encode(row["text"], add_special_tokens=False).ids[:length]
        bits, sizes = bits_of(subject, ids), token_bytes(tokenizer, ids)[1:]
        out["whole"].add(float(bits.sum()), int(sizes.sum()))
        if len(ids) <= FAR + 100:
            continue
        out["far"].add(float(bits[FAR - 1 :].sum()), int(sizes[FAR - 1 :].sum()))
        out["near"].add(float(bits[: FAR - 1].sum()), int(sizes[: FAR - 1].sum()))
        fresh = bits_of(subject, ids[FAR - 1 :])
        out["fresh"].add(float(fresh.sum()), int(sizes[FAR - 1 :].sum()))
    return out


def ends_of(tokenizer: Tokenizer, words: Words) -> frozenset[int]:
    return frozenset(id_of(tokenizer, token) for token in words.ends)
