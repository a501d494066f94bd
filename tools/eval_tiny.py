"""`tensorfold eval [FOLDER]`: judge a bundled model.

Prints right answers, objects and calls on the held-out prompts, bits a byte of held-out text
before and from row 4,000 on, the keys dropped there, accepted drafts, and ten replies as they are.
An engine runs the model, or with `--trainer` the trainer's own forward. `--card` writes what was
printed, with the facts of the training run beside the weights, to the folder's CARD.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from tensorfold.core.errors import StartError
from tensorfold.tools.arguments import Parser, positive
from tensorfold.tools.tiny import card
from tensorfold.tools.tiny.engine_subject import EngineSubject
from tensorfold.tools.tiny.judge import Subject, ends_of
from tensorfold.tools.tiny.lines import line_in
from tensorfold.tools.tiny.report import judged
from tensorfold.tools.tiny.subject import TrainerSubject

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="tensorfold eval", description="Judge a bundled model.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "families/glm53/tiny")
    parser.add_argument("--trainer", action="store_true", help="run the trainer's own forward")
    parser.add_argument("--device", default="cpu", help="of the trainer's forward")
    parser.add_argument("--backend", default="cpu-reference", help="of the engine")
    parser.add_argument("--held-out", type=Path, default=ROOT / "tests/data/tiny_heldout")
    parser.add_argument(
        "--rows", type=positive, default=8000, help="most rows of prose read at once"
    )
    parser.add_argument("--works", type=positive, default=None, help="stretches of prose (all)")
    parser.add_argument("--card", action="store_true", help="write FOLDER/CARD.md")
    options = parser.parse_args(arguments)
    refuse_without(options.folder, "tokenizer.json", "chat_template.jinja")
    refuse_without(options.held_out, "questions.jsonl")
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    line = line_in(options.folder)
    ends = ends_of(tokenizer, line.words)
    if options.trainer:
        by = "the trainer's own forward, fp32"
        subject: Subject = TrainerSubject(options.folder, ends, options.device)
    else:
        by = f"the engine on {options.backend}"
        subject = EngineSubject(str(options.folder), options.backend, ends, drafts=line.drafts)
    lines = judged(
        subject,
        options.folder,
        options.held_out,
        length=options.rows,
        works=options.works,
    )
    print("\n".join(lines))
    if options.card:
        card.write_card(options.folder, by, lines)
    return 0


def refuse_without(folder: Path, *names: str) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise StartError(f"{folder} has no {name}: there is nothing to judge")


if __name__ == "__main__":
    sys.exit(main())
