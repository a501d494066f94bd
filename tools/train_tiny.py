"""Train the bundled model: one seeded command, minutes on one GPU.

    python -m tensorfold.tools.train_tiny --out families/glm53/tiny \\
        --text "novels:public-domain:0.5=DIR" --text "docs:PSF-2.0:0.35=DIR" \\
        --text "code:PSF-2.0:0.15=DIR"

The chats, stories, JSON and tool calls are generated here from the seed; plain text comes from the
folders given (name:licence:share of the plain text). `--prepare` stops after the tokenizer and the
held-out sets are written. The folder's chat template is read, never written: chats are trained in
the words in which they are served. At the end the model is judged and its card written.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tensorfold.tools.tiny import card, chats, heldout
from tensorfold.tools.tiny.corpus import Corpus, chat_flat, make_chats, text_flat
from tensorfold.tools.tiny.judge import ends_of
from tensorfold.tools.tiny.model import Model, load_official, start_weights
from tensorfold.tools.tiny.report import judged
from tensorfold.tools.tiny.shape import read_shape, tiny_config
from tensorfold.tools.tiny.subject import TrainerSubject
from tensorfold.tools.tiny.tokens import ENDS, Renderer, train_tokenizer, write_text_files
from tensorfold.tools.tiny.training import Plan, Stage, train
from tensorfold.tools.tiny.works import Folder, read_folder, split_held_out

ROOT = Path(__file__).resolve().parents[1]
VOCAB = 4096
CONTEXT = 8192
TOKENIZER_CHATS = 12_000
CODE_SHARE = 0.25  # most of the plain text that may be program code


def folder_given(words: str) -> Folder:
    about, path = words.split("=", 1)
    name, licence, share = about.split(":")
    return read_folder(name, licence, float(share), Path(path), None)


def prepare(folders: list[Folder], out: Path, held: Path, seed: int) -> None:
    """Write the tokenizer, the configs and the held-out sets."""
    renderer = Renderer((out / "chat_template.jinja").read_text("utf-8"))
    draw = random.Random(seed)
    texts = [text for folder in folders for text in folder.works.values()]
    texts += [renderer(chats.chat(draw)).split("</arg_value>...</tool_call>")[-1]
              for _ in range(TOKENIZER_CHATS)]  # fmt: skip
    tokenizer = train_tokenizer(texts, VOCAB)
    ids = write_text_files(tokenizer, out, CONTEXT)
    config = tiny_config(
        vocab=VOCAB, context=CONTEXT, eos=[ids[token] for token in ENDS], pad=ids["<|endoftext|>"]
    )
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


def corpus_of(folders: list[Folder], options: argparse.Namespace, tokenizer: Tokenizer) -> Corpus:
    banned = heldout.banned(heldout.read(options.held_out))
    flats = []
    for long, count in ((False, options.chats), (True, options.chats // 100)):
        ids, starts = make_chats(
            options.seed + long, count, long=long, folder=options.out, banned=banned,
            workers=options.workers,
        )  # fmt: skip
        flats.append(chat_flat(ids, starts, tokenizer, options.device))
    texts = tuple((text_flat(f, tokenizer, options.device), f.share) for f in folders)
    return Corpus(short=flats[0], long=flats[1], texts=texts)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the bundled model.")
    parser.add_argument("--text", action="append", required=True, help="name:licence:share=FOLDER")
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
    parser.add_argument("--resume", type=Path, help="start from this folder's weights")
    parser.add_argument("--log", type=Path, default=Path("train_tiny.jsonl"))
    return parser.parse_args()


def main() -> None:
    options = arguments()
    begin = time.monotonic()
    folders = [folder_given(words) for words in options.text]
    code = sum(f.share for f in folders if f.name == "code") / sum(f.share for f in folders)
    if code > CODE_SHARE:
        raise SystemExit(f"{code:.2f} of the plain text would be code; at most {CODE_SHARE}")
    if options.prepare:
        prepare(folders, options.out, options.held_out, options.seed)
        return
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(str(options.out / "tokenizer.json"))
    corpus = corpus_of(folders, options, tokenizer)
    print(f"corpus: {corpus.short.ids.numel()} tokens of short chats, {corpus.long.ids.numel()} of "
          f"long, {[flat.ids.numel() for flat, _ in corpus.texts]} of text, "
          f"{time.monotonic() - begin:.1f} s", flush=True)  # fmt: skip
    model = Model(read_shape(json.loads((options.out / "config.json").read_text("utf-8"))))
    start_weights(model, torch.Generator().manual_seed(options.seed))
    if options.resume:
        load_official(model, load_file(options.resume / "model.safetensors"))
    model.to(options.device)
    length, rows = 512, options.far_batch
    plan = Plan(
        stages=(
            Stage(rows=options.batch // length, length=length, pieces=1, tokens=options.tokens,
                  chat_share=0.65, long_share=0.1, compiled=True),
            Stage(rows=rows, length=options.far_rows, pieces=2, tokens=options.far_tokens,
                  chat_share=0.6, long_share=0.6, compiled=False),
        ),
        rate=options.rate,
        warm_steps=100,
        fall=0.4,
        seconds=options.seconds,
        seed=options.seed,
    )  # fmt: skip
    progress, size = train(model, corpus, plan, options.out, options.log)
    pace = progress.tokens / progress.seconds
    print(f"{progress.tokens} tokens in {progress.seconds:.0f} s, {pace:.0f} a second; "
          f"{size} bytes of weights", flush=True)  # fmt: skip
    card.write_facts(options, folders, corpus, plan, progress, model)
    subject = TrainerSubject(options.out, ends_of(tokenizer), options.device)
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
