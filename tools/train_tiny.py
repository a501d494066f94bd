"""Train a bundled model: one seeded command, minutes on one GPU.

    python -m tensorfold.tools.train_tiny --line glm53 --out families/glm53/tiny \\
        --text "novels:public-domain:0.5=DIR" --text "docs:PSF-2.0:0.35=DIR" \\
        --text "code:PSF-2.0:0.15=DIR"

The chats, stories, JSON and tool calls are generated here from the seed; plain text comes from the
folders given (name:licence:share of the plain text). `--prepare` stops after the tokenizer, the
held-out sets and, with `--corpus`, everything to be trained on are written; a corpus file that is
there is read instead of the folders. A chat template that its line does not bring is read from the
folder, never written: chats are trained in the words in which they are served. At the end the model
is judged and its card written.
"""

import argparse
import json
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tensorfold.tools.tiny import card, chats, heldout
from tensorfold.tools.tiny.corpus import (
    Gathered,
    about_text,
    corpus_of,
    make_chats,
    read_gathered,
    text_ids,
)
from tensorfold.tools.tiny.judge import ends_of
from tensorfold.tools.tiny.lines import MODULES, Line, line_called, load_official
from tensorfold.tools.tiny.report import judged
from tensorfold.tools.tiny.subject import TrainerSubject
from tensorfold.tools.tiny.tokens import Renderer, train_tokenizer, write_text_files
from tensorfold.tools.tiny.training import rehearse, train
from tensorfold.tools.tiny.works import Folder, read_folder, split_held_out

ROOT = Path(__file__).resolve().parents[1]
VOCAB = 4096
CONTEXT = 8192
TOKENIZER_CHATS = 12_000
CODE_SHARE = 0.25  # most of the plain text that may be program code
TOOLS_END = "</arg_value>...</tool_call>"  # ends what glm5_next's template says of tools


def folder_given(words: str) -> Folder:
    about, path = words.split("=", 1)
    name, licence, share = about.split(":")
    return read_folder(name, licence, float(share), Path(path), None)


def prepare(line: Line, folders: list[Folder], out: Path, held: Path, seed: int) -> None:
    """Write the tokenizer, the configs and the held-out sets."""
    if line.template:
        out.mkdir(parents=True, exist_ok=True)
        (out / "chat_template.jinja").write_text(line.template, encoding="utf-8")
    renderer = Renderer((out / "chat_template.jinja").read_text("utf-8"))
    draw = random.Random(seed)
    texts = [text for folder in folders for text in folder.works.values()]
    texts += [renderer(line.dress(chats.chat(draw), draw)).split(TOOLS_END)[-1]
              for _ in range(TOKENIZER_CHATS)]  # fmt: skip
    tokenizer = train_tokenizer(texts, VOCAB, line.words)
    ids = write_text_files(tokenizer, out, CONTEXT, line.words)
    config = line.config(tokenizer, ids, out, CONTEXT)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    held.mkdir(parents=True, exist_ok=True)
    heldout.write(held)
    lines = []
    for folder in folders:
        for name, text in folder.works.items():
            stretch = (
                split_held_out(text)[1] if folder.share == max(f.share for f in folders) else ""
            )
            if stretch:
                lines.append(json.dumps({"work": name, "text": stretch}, ensure_ascii=False))
    (held / "prose.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def gather(line: Line, folders: list[Folder], options: argparse.Namespace) -> Gathered:
    tokenizer = Tokenizer.from_file(str(options.out / "tokenizer.json"))
    banned = heldout.banned(heldout.read(options.held_out))
    arrays = {
        name: make_chats(
            options.seed + long, count, long=long, folder=options.out, banned=banned, line=line,
            workers=options.workers,
        )
        for name, long, count in (
            ("short", False, options.chats), ("long", True, options.chats // 100)
        )
    }  # fmt: skip
    for number, folder in enumerate(folders):
        arrays[f"text.{number}"] = text_ids(folder, tokenizer, line.words)
    return Gathered(arrays=arrays, texts=[about_text(folder) for folder in folders])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a bundled model.")
    parser.add_argument("--line", choices=sorted(MODULES), default="glm53")
    parser.add_argument("--text", action="append", default=[], help="name:licence:share=FOLDER")
    parser.add_argument("--corpus", type=Path, help="what --prepare gathered, one file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--held-out", type=Path, default=ROOT / "tests/data/tiny_heldout")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chats", type=int, default=400_000)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=300_000_000, help="at rows of 512")
    parser.add_argument("--far-tokens", type=int, default=40_000_000, help="at rows of --far-rows")
    parser.add_argument("--far-rows", type=int, default=CONTEXT)
    parser.add_argument("--batch", type=int, default=65_536, help="tokens a step")
    parser.add_argument("--far-batch", type=int, default=2, help="rows of --far-rows at once")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--draft-share", type=float, default=0.25, help="of the seconds, for dsv41")
    parser.add_argument(
        "--rehearse",
        type=int,
        default=0,
        metavar="ROWS",
        help="first run each stage's work once, uncompiled, on so many rows",
    )
    parser.add_argument("--unjudged", action="store_true", help="stop when trained")
    parser.add_argument("--resume", type=Path, help="start from this folder's weights")
    parser.add_argument("--log", type=Path, default=Path("train_tiny.jsonl"))
    return parser.parse_args()


def main() -> None:
    options = arguments()
    begin = time.monotonic()
    line = line_called(options.line)
    folders = [folder_given(words) for words in options.text]
    code = sum(f.share for f in folders if f.name == "code")
    if code > CODE_SHARE * sum(f.share for f in folders):
        raise SystemExit(f"{code:.2f} of the plain text would be code; at most {CODE_SHARE}")
    if options.prepare:
        prepare(line, folders, options.out, options.held_out, options.seed)
        if options.corpus:
            gather(line, folders, options).save(options.corpus)
        return
    if options.corpus and options.corpus.is_file():
        gathered = read_gathered(options.corpus)
    elif folders:
        gathered = gather(line, folders, options)
    else:
        raise SystemExit("give --text, or a --corpus that is there")
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(str(options.out / "tokenizer.json"))
    corpus = corpus_of(gathered, tokenizer, line.words, options.device)
    print(f"corpus: {corpus.short.ids.numel()} tokens of short chats, {corpus.long.ids.numel()} of "
          f"long, {[flat.ids.numel() for flat, _ in corpus.texts]} of text, "
          f"{time.monotonic() - begin:.1f} s", flush=True)  # fmt: skip
    config = json.loads((options.out / "config.json").read_text("utf-8"))
    trainee = line.trainee(config, options.out)
    trainee.start(options.seed)
    if options.resume:
        load_official(trainee.official(), load_file(options.resume / "model.safetensors"))
    trainee.model.to(options.device)
    plans = line.plans(options)
    if options.rehearse:
        kept = {name: value.clone() for name, value in trainee.model.state_dict().items()}
        for said in rehearse(trainee, corpus, plans, options.rehearse):
            print(said, flush=True)
        trainee.model.load_state_dict(kept)
    options.log.write_text("", encoding="utf-8")
    runs: list[dict[str, Any]] = []
    for plan in plans:
        progress, size = train(trainee, line, corpus, plan, options.out, options.log)
        pace = progress.tokens / progress.seconds
        print(f"{plan.part}: {progress.tokens} tokens in {progress.seconds:.0f} s, {pace:.0f} a "
              f"second; {size} bytes of weights", flush=True)  # fmt: skip
        runs.append({"plan": asdict(plan), "progress": asdict(progress)})
        card.write_facts(options, gathered, runs, trainee)
    if options.unjudged:
        return
    subject = TrainerSubject(options.out, ends_of(tokenizer, line.words), options.device)
    lines = judged(
        subject,
        options.out,
        options.held_out,
        length=CONTEXT,
        works=None,
    )
    card.write_card(options.out, "the trainer's own forward, fp32", lines)


if __name__ == "__main__":
    main()
