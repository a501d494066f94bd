"""Judge a bundled model: `python -m tensorfold.tools.eval_tiny FOLDER --trainer`.

Prints right answers, objects and calls on the held-out prompts, bits a byte of held-out text
before and from row 4,000 on, the keys dropped there, accepted drafts, and ten replies as they are.
The model runs behind `tools.tiny.judge.Subject`.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tensorfold.tools.tiny.judge import MOST, ends_of
from tensorfold.tools.tiny.report import judged
from tensorfold.tools.tiny.subject import TrainerSubject

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge a bundled model.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "families/glm53/tiny")
    parser.add_argument("--trainer", action="store_true", help="run the trainer's own model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--held-out", type=Path, default=ROOT / "tests/data/tiny_heldout")
    parser.add_argument("--rows", type=int, default=6000, help="rows of prose read at once")
    parser.add_argument("--works", type=int, default=None, help="stretches of prose (all)")
    options = parser.parse_args()
    if not options.trainer:
        parser.error("say what runs the model: --trainer")
    torch.backends.cuda.matmul.allow_tf32 = False
    ends = ends_of(Tokenizer.from_file(str(options.folder / "tokenizer.json")))
    subject = TrainerSubject(options.folder, ends, options.device)
    lines = judged(
        subject,
        lambda prompts: subject.generate_many(prompts, MOST),
        options.folder,
        options.held_out,
        length=options.rows,
        works=options.works,
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
