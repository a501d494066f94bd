"""The bundled model as the engine runs it: the trainer's own arithmetic, and its bars."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tensorfold.tools.tiny import heldout
from tensorfold.tools.tiny.engine_subject import EngineSubject
from tensorfold.tools.tiny.judge import ends_of, judge_prompts
from tensorfold.tools.tiny.report import BARS
from tensorfold.tools.tiny.subject import TrainerSubject
from tensorfold.tools.tiny.tokens import Renderer

ROOT = Path(__file__).parents[2]
TINY = ROOT / "families" / "glm53" / "tiny"
SETS = heldout.read(ROOT / "tests" / "data" / "tiny_heldout")
TOKENIZER = Tokenizer.from_file(str(TINY / "tokenizer.json"))


@pytest.fixture(scope="module")
def engine() -> EngineSubject:
    return EngineSubject(str(TINY), "cpu-reference", ends_of(TOKENIZER))


def test_the_engine_computes_what_was_trained(engine: EngineSubject) -> None:
    trainer = TrainerSubject(TINY, ends_of(TOKENIZER), "cpu")
    # Past row 259 keys are dropped.
    ids = TOKENIZER.encode(SETS["prose"][0]["text"]).ids[:400]
    assert (engine.logits(ids) - trainer.logits(ids)).abs().max() <= 2e-4
    dropped = trainer.dropped(ids)
    assert all(share > 0 for share in dropped.values())
    assert engine.dropped(ids).items() <= dropped.items()
    (ours, rows), (theirs, _) = engine.draft_agreement(ids), trainer.draft_agreement(ids)
    assert rows == len(ids) - 1
    assert abs(ours - theirs) <= 2


def test_held_out_prompts_are_answered(engine: EngineSubject) -> None:
    renderer = Renderer((TINY / "chat_template.jinja").read_text("utf-8"))
    verdict = judge_prompts(engine, SETS, TOKENIZER, renderer)
    below = {name: verdict.counts[name] for name, bar in BARS.items() if verdict.counts[name] < bar}
    assert not below, verdict.misses


def test_at_row_4000_half_of_the_keys_are_dropped(engine: EngineSubject) -> None:
    ids = TOKENIZER.encode(SETS["prose"][0]["text"]).ids[:4000]
    dropped = engine.dropped(ids)
    assert len(dropped) == 2
    assert min(dropped.values()) >= 0.5
