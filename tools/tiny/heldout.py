"""The held-out prompts: made from another seed, of combinations that training never shows."""

import json
import random
from pathlib import Path
from typing import Any

from tensorfold.tools.tiny import calls, chats, objects, talk

SEED = "held out"
QUESTIONS, THREADS, OBJECTS, JOBS = 38, 12, 50, 50


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def questions(draw: random.Random) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    while len(out) < QUESTIONS:
        ask = chats.any_ask(draw)
        if ask.held and all(ask.text != other["messages"][0]["content"] for other in out):
            out.append({"messages": user(ask.text), "answers": list(ask.listed)})
    while len(out) < QUESTIONS + THREADS:
        told = talk.told(draw)
        if not chats.told_held(told):
            continue
        messages = chats.pair(*told[0])
        if draw.random() < 0.5:
            messages += chats.exchange(draw, False)
        answers = [told[1][1], told[2]]
        out.append({"messages": messages + user(told[1][0]), "answers": answers})
    return out


def wanted_objects(draw: random.Random) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    while len(out) < OBJECTS:
        wanted = objects.wanted(draw)
        if wanted.held:
            out.append({"messages": user(wanted.text), "object": wanted.value})
    return out


def jobs(draw: random.Random) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    while len(out) < JOBS:
        job = calls.job(draw)
        if job.held:
            asked = [{"name": name, "arguments": given} for name, given in job.calls]
            out.append({"messages": user(job.text), "tools": job.tools, "calls": asked})
    return out


def all_sets() -> dict[str, list[dict[str, Any]]]:
    draw = random.Random(SEED)
    return {"questions": questions(draw), "objects": wanted_objects(draw), "calls": jobs(draw)}


def write(folder: Path) -> None:
    """Write one JSON line a prompt to questions.jsonl, objects.jsonl and calls.jsonl."""
    for name, rows in all_sets().items():
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The sets as written; `prose` too: held-out stretches of works, each {"work", "text"}."""
    return {
        name: [
            json.loads(line) for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()
        ]
        for name in ("questions", "objects", "calls", "prose")
    }


def banned(sets: dict[str, list[dict[str, Any]]]) -> frozenset[str]:
    """User texts of the one-message prompts: a training chat that has one is left out."""
    rows = [row for name in ("questions", "objects", "calls") for row in sets[name]]
    return frozenset(row["messages"][0]["content"] for row in rows if len(row["messages"]) == 1)
