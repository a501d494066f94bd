"""Judge a bundled model: `tensorfold eval [FOLDER]`.

Prints right answers, objects and calls on the held-out prompts, bits a byte of held-out text
before and from row 4,000 on, the keys dropped there, accepted drafts, and ten replies as they are.
The engine runs the weights; `--trainer` has the trainer's own model run them instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tensorfold.plugins.choose import choose_backend
from tensorfold.plugins.manager import discover
from tensorfold.tools.models import find_model
from tensorfold.tools.tiny.engine_subject import EngineSubject
from tensorfold.tools.tiny.judge import MOST, ends_of
from tensorfold.tools.tiny.report import judged
from tensorfold.tools.tiny.subject import TrainerSubject

HELD_OUT = Path(__file__).resolve().parents[1] / "tests" / "data" / "tiny_heldout"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tensorfold eval", description="Judge a bundled model.")
    parser.add_argument("model", nargs="?", default="", metavar="DIR|NAME")
    parser.add_argument("--trainer", action="store_true", help="run the trainer's own model")
    parser.add_argument("--device", default="cpu", help="where the trainer's model runs")
    parser.add_argument("--held-out", type=Path, default=HELD_OUT)
    parser.add_argument("--rows", type=int, default=6000, help="rows of prose read at once")
    parser.add_argument("--works", type=int, default=None, help="stretches of prose (all)")
    options = parser.parse_args(arguments)
    installed = discover()
    backend = choose_backend(installed, "cpu-reference")
    model = find_model(installed, backend, options.model)
    assert model.family is not None, model
    ends = ends_of(Tokenizer.from_file(str(model.folder / "tokenizer.json")))
    subject: TrainerSubject | EngineSubject
    if options.trainer:
        torch.backends.cuda.matmul.allow_tf32 = False
        subject = TrainerSubject(model.folder, ends, options.device)
    else:
        subject = EngineSubject(model.folder, model.family, ends, options.rows + MOST)
    lines = judged(
        subject,
        lambda prompts: subject.generate_many(prompts, MOST),
        model.folder,
        options.held_out,
        length=options.rows,
        works=options.works,
    )
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
