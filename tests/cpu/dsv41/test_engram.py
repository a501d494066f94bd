"""Engram: the token map, the hash by hand, and tables that stay where they lie."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tensorfold.core.checkpoint import open_checkpoint, read_config
from tensorfold.core.engine.source import FromFolder
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.families.dsv41 import engram
from tensorfold.families.dsv41.config import read
from tensorfold.families.dsv41.engram import Table
from tensorfold.families.dsv41.model import Dsv41
from tensorfold.families.dsv41.plugin import FAMILY
from tensorfold.families.dsv41.token_map import SHIPPED, from_tokenizer, token_map
from tests.cpu.driving import alone, some_tokens
from tests.cpu.dsv41.engines import CKPT, GOLDEN, opened
from tests.cpu.dsv41.test_kept import asked_of

RELEASE = json.loads((GOLDEN / "release_config.json").read_text())


def copied(folder: Path) -> Path:
    for name in ("config.json", "model.safetensors", SHIPPED):
        shutil.copyfile(CKPT / name, folder / name)
    return folder


def test_the_multipliers_of_the_release() -> None:
    own = read(RELEASE).engram
    assert own is not None
    assert engram.factors(own).tolist() == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]


@pytest.mark.parametrize("image_at", [None, 0, 3, 9])
def test_names_equal_the_hash_written_out(shared: TorchEngine, image_at: int | None) -> None:
    model = shared.model
    assert isinstance(model, Dsv41)
    config, own = model.config, model.weights.hashing
    assert own is not None
    assert config.engram is not None
    tokens = some_tokens(12)
    if image_at is not None:
        tokens[image_at] = config.image_id
    ids = torch.tensor([[tokens[max(0, p - s)] for s in range(4)] for p in range(12)])
    found = engram.names(config, own, ids, torch.arange(12))
    shipped = json.loads((CKPT / SHIPPED).read_text())
    for position in range(12):
        for layer, primes in enumerate(config.engram.primes):
            blocked, rolled, column, offset = False, 0, 0, 0
            for shift in range(4):
                at = position - shift
                blocked = blocked or at < 0 or tokens[at] == config.image_id
                value = shipped[2] if blocked else shipped[tokens[at]]
                rolled ^= value * int(engram.factors(config.engram)[layer, shift])
                for prime in primes[shift - 1] if shift else ():
                    assert int(found[position, layer, column]) == rolled % prime + offset
                    column, offset = column + 1, offset + prime


def test_the_token_map_made_from_a_tokenizer(tmp_path: Path) -> None:
    words = ["a", "A", "á", " ", "Ġ", "Ċ", "ĠĠ", "ĠA", "b", "Ã", "ﬁ", "fi"]
    tokenizer = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = from_tokenizer(tmp_path / "tokenizer.json")
    texts = tokenizer.decode([6], skip_special_tokens=False)
    assert texts == "  "
    # Case and accents fall away, and so does space around a word; a text of spaces is one space.
    assert found[0] == found[1] == found[7] == 0
    assert found[4] == found[5] == found[6]
    assert found[8] not in (found[0], found[4])
    # Half a character has no text: its token stands for itself.
    assert found[9] not in found[:9]
    assert sorted(set(found)) == list(range(max(found) + 1))


def test_a_token_map_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    config = read(read_config(CKPT))
    with pytest.raises(StartError, match="holds neither"):
        token_map(config, tmp_path)
    for wrong, why in (
        ([0, 1, 2], "to 3 words"),
        ([n % 100 for n in range(161)], "maps 161 ids"),
        ([-1, *range(100)], "words"),
        ({"a": 1}, "no list"),
        ([True], "no list"),
        ([0.5], "no list"),
    ):
        (tmp_path / SHIPPED).write_text(json.dumps(wrong))
        with pytest.raises(StartError, match=why):
            token_map(config, tmp_path)
    (tmp_path / SHIPPED).write_text("[1,")
    with pytest.raises(StartError, match="cannot be read"):
        token_map(config, tmp_path)


PLACES = ("disk", "memory", "device")


def test_a_table_on_disk_gives_the_bits_of_one_in_memory() -> None:
    config = read(read_config(CKPT))
    specs = FAMILY.tensors(config)
    tables = [spec.name for spec in specs if spec.table]
    assert tables == ["layers.1.engram.embed.weight", "layers.4.engram.embed.weight"]
    stored = load_file(CKPT / "model.safetensors")
    for where in PLACES:
        found = open_checkpoint(CKPT).load(specs, FAMILY.ignored, dtype=torch.float64, tables=where)
        for spec in specs:
            wanted = torch.float32 if spec.table else torch.float64
            assert found[spec.name].dtype == wanted
        for name in tables:
            assert torch.equal(found[name], stored[name])
    asked = asked_of(20)
    proofs = [alone(opened("plain", tables=where), asked).proof() for where in PLACES]
    assert proofs[0] == proofs[1] == proofs[2]


def test_tables_in_the_devices_memory_count_against_its_room() -> None:
    source = FromFolder(CKPT)
    specs = FAMILY.tensors(read(read_config(CKPT)))
    stored = load_file(CKPT / "model.safetensors")
    tables = [stored[spec.name] for spec in specs if spec.table]
    assert source.table_bytes(specs) == sum(one.numel() * one.element_size() for one in tables)


def test_a_table_that_is_missing_or_short_is_named_at_start(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    tensors = load_file(CKPT / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1000])
    with pytest.raises(StartError, match=r"model\.safetensors is truncated"):
        opened("plain", folder)
    name = "layers.4.engram.embed.weight"
    save_file({**tensors, name: tensors[name][:-1].clone()}, folder / "model.safetensors")
    with pytest.raises(StartError, match=name):
        opened("plain", folder)
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StartError, match=f"lacks tensor '{name}'"):
        opened("plain", folder)


def test_the_token_map_is_part_of_the_engines_identity(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    sizes = {"lanes": 1, "context": 64, "chunk_rows": 64}
    first = opened("plain", folder, **sizes).info.identity
    assert opened("plain", **sizes).info.identity == first
    shipped = json.loads((folder / SHIPPED).read_text())
    (folder / SHIPPED).write_text(json.dumps([(n + 1) % 100 for n in shipped]))
    assert opened("plain", folder, **sizes).info.identity != first


def test_a_packed_table_is_widened_row_by_row() -> None:
    generator = np.random.default_rng(0)
    values = torch.from_numpy(generator.standard_normal((50, 64)).astype("float32"))
    packed = values.to(torch.float8_e4m3fn)
    scale = torch.from_numpy(generator.integers(120, 135, (50, 2)).astype("uint8"))
    rows = torch.tensor([[3, 49, 3], [0, 7, 20]])
    found = Table(packed, scale).fetch(rows, torch.zeros(1))
    power = 2.0 ** (scale.double() - 127)
    whole = (packed.double().view(50, 2, 32) * power[..., None]).view(50, 64)
    assert torch.equal(found.double(), whole[rows].view(2, -1))
