"""The other family on several ranks: a model of random weights that four of them can share."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tensorfold.core.backend_api import Place
from tensorfold.core.errors import StartError
from tensorfold.core.share import Share
from tensorfold.families.dsv41 import names
from tensorfold.families.dsv41.config import read
from tensorfold.families.dsv41.plugin import FAMILY
from tests.cpu.dsv41.engines import CKPT, WINDOW_ROWS
from tests.cpu.ranks.running import led, on_ranks, opened_at
from tests.cpu.ranks.scenes import everything

COUNTS = (1, 2, 3, 4)
WIDER = {
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "num_attention_heads": 8,
    "o_groups": 4,
    "moe_intermediate_size": 256,
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 3,
    "dspark_target_layer_ids": [4, 5, 6],
    "dspark_markov_rank": 16,
    "dspark_n_routed_experts": 8,
    "dspark_num_experts_per_tok": 2,
    "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 0, 0, 0],
}
pytestmark = pytest.mark.timeout(300)


def wider_checkpoint(folder: Path) -> Path:
    raw = json.loads((CKPT / "config.json").read_text())
    raw["text_config"] |= WIDER
    (folder / "config.json").write_text(json.dumps(raw))
    shipped = "engram_token_map.json"
    (folder / shipped).write_text((CKPT / shipped).read_text())
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for spec in names.tensors(read(raw)):
        drawn = torch.randn(spec.shape, generator=generator)
        if len(spec.shape) == 2:
            drawn = drawn * spec.shape[1] ** -0.5
        elif spec.name.endswith(("norm.weight", "scale")):
            drawn = 1 + 0.1 * drawn
        else:
            drawn = 0.3 * drawn
        tensors[spec.name] = drawn
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wider_checkpoint(tmp_path_factory.mktemp("wider"))


def played(place: Place | None, folder: Path, numerics: str) -> tuple[Any, dict[str, Any]]:
    engine = opened_at(place, folder, FAMILY, numerics=numerics, drafts=5, window_rows=WINDOW_ROWS)
    told = {"identity": engine.info.identity, "checks": dict(engine.info.checks)}
    return led(place, engine, everything), told


@functools.cache
def play(folder: Path, numerics: str, count: int) -> list[tuple[Any, dict[str, Any]]]:
    return on_ranks(count, played, folder, numerics, seconds=200)


@pytest.mark.parametrize("count", COUNTS)
def test_the_promises_hold_at_each_count(folder: Path, count: int) -> None:
    (company, by_hand), _ = play(folder, "plain", count)[0]
    for stream, proof in company["alone"].items():
        for how in ("drafted", "among eight", "drafted among eight"):
            assert company[how][stream] == proof, (how, stream)
    assert len(set(map(repr, by_hand.values()))) == 1, by_hand


@pytest.mark.parametrize("count", [2, 4])
def test_two_and_four_ranks_give_the_bits_and_the_identity_of_one(folder: Path, count: int) -> None:
    proofs, told = play(folder, "plain", count)[0]
    one, alone = play(folder, "plain", 1)[0]
    shares = [held for name, held in told["checks"].items() if name.startswith("ranks:")]
    assert shares
    assert all(shares), told["checks"]
    assert proofs == one
    assert told["identity"] == alone["identity"]


def test_faithful_numerics_give_two_ranks_the_bits_of_one(folder: Path) -> None:
    assert play(folder, "faithful", 2)[0][0] == play(folder, "faithful", 1)[0][0]


def test_a_share_that_would_round_in_other_blocks_is_refused(folder: Path, tmp_path: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    raw["text_config"]["moe_intermediate_size"] = 64
    config = FAMILY.config(raw, "faithful")
    assert FAMILY.shared(config, Share(ranks=2)).held.shared == 4
    with pytest.raises(StartError, match="moe_intermediate_size is rounded in blocks of 32"):
        FAMILY.shared(config, Share(ranks=4))
    assert FAMILY.shared(FAMILY.config(raw, "plain"), Share(ranks=4)).held.shared == 2


def runs_ahead(place: Place, folder: Path, tables: list[str]) -> bool:
    where = tables[place.share.rank]
    return opened_at(place, folder, FAMILY, drafts=0, tables=where).ahead.may


@pytest.mark.parametrize("tables", [["memory", "memory"], ["memory", "disk"], ["disk", "memory"]])
def test_rounds_run_ahead_on_all_ranks_or_on_none(folder: Path, tables: list[str]) -> None:
    # A rank that reads a file looks at it before each round.
    assert on_ranks(2, runs_ahead, folder, tables) == [tables == ["memory", "memory"]] * 2
