"""The facts of a training run for the card: what was read, what was trained, how it went."""

import argparse
import json
from dataclasses import asdict

from tensorfold.tools.tiny.corpus import Corpus
from tensorfold.tools.tiny.model import Model
from tensorfold.tools.tiny.training import Plan, Progress
from tensorfold.tools.tiny.works import Folder, one_hash

SHOWN = 12  # works listed by name; of more, one hash over the folder


def write_run(
    options: argparse.Namespace,
    folders: list[Folder],
    corpus: Corpus,
    plan: Plan,
    progress: Progress,
    model: Model,
) -> None:
    """Write run.json beside the log."""
    parameters = {
        "all": sum(p.numel() for p in model.parameters()),
        "draft layer": sum(p.numel() for p in model.layers[-1].parameters()),
    }
    texts = [
        {
            "name": folder.name,
            "licence": folder.licence,
            "works": len(folder.works),
            "characters": sum(map(len, folder.works.values())),
            "tokens": flat.ids.numel(),
            "share": share,
            "sha256": folder.sha256 if len(folder.works) <= SHOWN else one_hash(folder),
        }
        for folder, (flat, share) in zip(folders, corpus.texts, strict=True)
    ]
    facts = {
        "command": {
            k: str(v) for k, v in vars(options).items() if k not in ("out", "log", "held_out")
        },
        "plan": asdict(plan),
        "progress": asdict(progress),
        "parameters": parameters,
        "chats": {
            "short": corpus.short.starts.numel(),
            "short tokens": corpus.short.ids.numel(),
            "long": corpus.long.starts.numel(),
            "long tokens": corpus.long.ids.numel(),
        },
        "texts": texts,
    }
    path = options.log.with_name("run.json")
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
