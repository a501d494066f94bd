"""The bundled models as the engine runs them: the trainer's own arithmetic, and their bars."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tensorfold.tools.tiny import heldout
from tensorfold.tools.tiny.engine_subject import EngineSubject
from tensorfold.tools.tiny.judge import ends_of, judge_prompts
from tensorfold.tools.tiny.lines import Line, line_called
from tensorfold.tools.tiny.subject import TrainerSubject
from tensorfold.tools.tiny.tokens import Renderer

ROOT = Path(__file__).parents[2]
SETS = heldout.read(ROOT / "tests" / "data" / "tiny_heldout")
# Prompts of each set that are judged here, and the rows after which half of the keys are dropped.
JUDGED = {"glm53": 50, "dsv41": 20}
FAR = {"glm53": 4000, "dsv41": 1000}


class Tiny:
    """A bundled model in an engine, and what reads and writes its text."""

    def __init__(self, name: str) -> None:
        self.line: Line = line_called(name)
        self.folder = ROOT / "families" / name / "tiny"
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.ends = ends_of(self.tokenizer, self.line.words)
        self.engine = EngineSubject(
            str(self.folder), "cpu-reference", self.ends, drafts=self.line.drafts
        )

    def prose(self, rows: int) -> list[int]:
        return self.tokenizer.encode(SETS["prose"][0]["text"]).ids[:rows]


@pytest.fixture(scope="module", params=["glm53", "dsv41"])
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return Tiny(request.param)


def test_the_engine_computes_what_was_trained(tiny: Tiny) -> None:
    trainer = TrainerSubject(tiny.folder, tiny.ends, "cpu")
    # glm53 drops keys past row 259; dsv41 past row 256, where candidate blocks mask too.
    ids = tiny.prose(400)
    assert (tiny.engine.logits(ids) - trainer.logits(ids)).abs().max() <= 2e-4
    dropped = trainer.dropped(ids)
    assert all(share > 0 for share in dropped.values())
    assert tiny.engine.dropped(ids).items() <= dropped.items()
    ours, theirs = tiny.engine.draft_agreement(ids), trainer.draft_agreement(ids)
    assert (ours is None) == (theirs is None) == bool(tiny.line.drafts)
    if ours and theirs:
        assert ours[1] == len(ids) - 1
        assert abs(ours[0] - theirs[0]) <= 2


def test_held_out_prompts_are_answered_and_blocks_of_drafts_accepted(tiny: Tiny) -> None:
    renderer = Renderer((tiny.folder / "chat_template.jinja").read_text("utf-8"))
    some = {name: rows[: JUDGED[tiny.line.name]] for name, rows in SETS.items()}
    verdict = judge_prompts(tiny.engine, some, tiny.tokenizer, renderer, tiny.line)
    counts, totals = verdict.counts, verdict.totals
    bars = {name: bar * totals[name] // len(SETS[name]) for name, bar in tiny.line.bars.items()}
    below = {name: counts[name] for name, bar in bars.items() if counts[name] < bar}
    assert not below, verdict.misses
    rounds = tiny.engine.rounds
    drafted = [accepted for drafts, accepted in rounds if drafts]
    assert bool(drafted) is (tiny.line.drafts > 0)
    # A round without drafts, at a reply's end, counts as one that accepted nothing.
    assert not drafted or sum(drafted) >= 1.5 * len(rounds)


def test_far_into_a_text_half_of_the_keys_are_dropped(tiny: Tiny) -> None:
    dropped = tiny.engine.dropped(tiny.prose(FAR[tiny.line.name]))
    assert len(dropped) == {"glm53": 2, "dsv41": 3}[tiny.line.name]
    assert min(dropped.values()) >= 0.5
