"""Routed experts cut by their inner width: every promise but that of one rank's bits, and a receipt
that tells it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorfold.core.backend_api import Place
from tensorfold.core.checkpoint import open_checkpoint, read_config
from tensorfold.core.engine_api import Engine
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import Family
from tensorfold.core.share import IDS, WIDTH, Share
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tests.cpu.driving import CKPT, opened
from tests.cpu.dsv41.engines import WINDOW_ROWS
from tests.cpu.ranks.running import led, on_ranks, opened_at
from tests.cpu.ranks.scenes import everything
from tests.cpu.ranks.test_dsv41 import wider_checkpoint

COUNTS = (2, 3, 4)
# Three ranks hold unequal parts; of two and four each family shows one.
PLAYED = [("glm53", 2), ("glm53", 3), ("dsv41", 3), ("dsv41", 4)]
FAMILIES: dict[str, Family] = {"glm53": GLM53, "dsv41": DSV41}
FLAGS: dict[str, dict[str, Any]] = {
    "glm53": {"drafts": 3},
    "dsv41": {"drafts": 5, "window_rows": WINDOW_ROWS},
}
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"glm53": CKPT, "dsv41": wider_checkpoint(tmp_path_factory.mktemp("wider"))}


def played(place: Place | None, name: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    engine = opened_at(place, folder, FAMILIES[name], expert_cut=WIDTH, **FLAGS[name])
    told = {"identity": engine.info.identity, "checks": dict(engine.info.checks)}
    return led(place, engine, sampled), told


def sampled(engine: Engine) -> Any:
    """All that is asked, of one sampled reply: at each count, by ids, there are more."""
    return everything(engine, (1,))


@functools.cache
def play(name: str, folder: Path, count: int) -> list[tuple[Any, dict[str, Any]]]:
    return on_ranks(count, played, name, folder, seconds=200)


@pytest.mark.parametrize(("name", "count"), PLAYED)
def test_the_promises_hold_at_each_count(folders: dict[str, Path], name: str, count: int) -> None:
    (company, by_hand), told = play(name, folders[name], count)[0]
    for stream, proof in company["alone"].items():
        for how in ("drafted", "among eight", "drafted among eight"):
            assert company[how][stream] == proof, (how, stream)
    assert len(set(map(repr, by_hand.values()))) == 1, by_hand
    # Nothing claims that a share has the whole's bits.
    assert not [check for check in told["checks"] if check.startswith("ranks:")]


def test_a_receipt_tells_the_cut_and_its_ranks_where_there_are_several() -> None:
    one = opened(drafts=3).info.identity
    assert opened(drafts=3, expert_cut=WIDTH).info.identity == one
    by_width = [{told["identity"] for _, told in play("glm53", CKPT, n)} for n in (2, 3)]
    identities = [set(on_ranks(3, identity)), *by_width]
    assert all(len(own) == 1 for own in identities), identities
    assert len({one, *(own.pop() for own in identities)}) == 4


def identity(place: Place | None) -> str:
    return opened_at(place, drafts=3, expert_cut=IDS).info.identity


@pytest.mark.parametrize("ranks", COUNTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_each_rank_reads_its_part_of_every_routed_expert_and_nothing_else_of_it(
    folders: dict[str, Path], name: str, ranks: int
) -> None:
    family, checkpoint = FAMILIES[name], open_checkpoint(folders[name])
    config = family.config(read_config(folders[name]), expert_cut=WIDTH)
    specs = [spec for spec in family.tensors(config) if ".experts." in spec.name]
    tables = {spec.name for spec in family.tensors(config) if spec.table}
    whole = checkpoint.load(family.tensors(config), family.ignored, dtype=torch.float32)
    parts = []
    for rank in range(ranks):
        share = Share(rank=rank, ranks=ranks)
        told: list[tuple[str, int, int]] = []
        parts.append(
            checkpoint.load(
                family.tensors(config),
                family.ignored,
                dtype=torch.float32,
                share=share,
                progress=lambda *step, told=told: told.append(step),
            )
        )
        read = sum(part.nbytes for name, part in parts[-1].items() if name not in tables)
        assert told[-1][1:] == (read, read)
    assert specs
    for spec in specs:
        assert spec.axis is not None
        size = spec.shape[spec.axis]
        held = [part[spec.name].shape[spec.axis] for part in parts]
        assert all(abs(own - size / ranks) < size / 8 for own in held), (spec.name, held)
        joined = torch.cat([part[spec.name] for part in parts], spec.axis)
        assert torch.equal(joined, whole[spec.name]), spec.name


def test_a_width_that_does_not_divide_is_refused_by_its_name() -> None:
    raw = read_config(CKPT)
    raw["text_config"] |= {"moe_intermediate_size": 12, "n_shared_experts": 2}
    GLM53.shared(GLM53.config(raw), Share(ranks=2))
    with pytest.raises(StartError, match="--ranks is 2, and moe_intermediate_size of 12 cannot"):
        GLM53.shared(GLM53.config(raw, expert_cut=WIDTH), Share(ranks=2))
    raw = read_config(CKPT)
    raw["text_config"] |= {"n_routed_experts": 12}
    with pytest.raises(StartError, match="n_routed_experts of 12 cannot be cut"):
        GLM53.shared(GLM53.config(raw), Share(ranks=2))
    # Experts that ids cannot share out are none the less cut by width.
    assert GLM53.shared(GLM53.config(raw, expert_cut=WIDTH), Share(ranks=2)).held.experts == 12
