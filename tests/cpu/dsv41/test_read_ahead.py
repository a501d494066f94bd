"""Rows of tables on disk are read before the forward that needs them, and change nothing in it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Filled, Opening, Piece, Window
from tensorfold.core.errors import EngineLost, StartError
from tensorfold.families.dsv41 import engram
from tensorfold.families.dsv41.model import Dsv41
from tests.cpu.driving import some_tokens
from tests.cpu.dsv41.engines import CKPT, opened

SIZES = {"lanes": 2, "context": 192, "chunk_rows": 32}
LENGTH = 148  # whole tiles: padding rows name rows too
SECONDS = 20.0


@dataclass(kw_only=True)
class SlowTable:
    """A table behind a disk that takes `pause` seconds for rows it was not asked for before."""

    table: engram.Table
    pause: float = 0.0
    known: set[int] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)
    # Rows that forwards had to wait for themselves, a number a forward.
    cold: list[int] = field(default_factory=list)
    asked: list[set[int]] = field(default_factory=list)
    # Rows that the next forward does not begin to read before they are known.
    until: set[int] = field(default_factory=set)

    def read(self, names: set[int]) -> int:
        with self.changed:
            new = names - self.known
        if new:
            time.sleep(self.pause)
        with self.changed:
            self.known |= new
            self.changed.notify_all()
        return len(new)

    def touch(self, name_N: Tensor) -> None:
        self.read(set(name_N.tolist()))

    def fetch(self, name_RC: Tensor, like: Tensor) -> Tensor:
        with self.changed:
            there = self.changed.wait_for(lambda: self.until <= self.known, SECONDS)
        assert there, "the rows of the next piece were not read beside this one"
        names = set(name_RC.flatten().tolist())
        self.asked.append(names)
        self.cold.append(self.read(names))
        return self.table.fetch(name_RC, like)


def slowed(engine: TorchEngine, pause: float = 0.0) -> list[SlowTable]:
    model = engine.model
    assert isinstance(model, Dsv41)
    assert model.ahead is not None
    doubles, layers = [], []
    for layer in model.weights.layers:
        if layer.engram is not None:
            doubles.append(SlowTable(table=layer.engram.table, pause=pause))
            own = layer.engram._replace(table=doubles[-1])  # type: ignore[arg-type]
            layer = layer._replace(engram=own)
        layers.append(layer)
    model.weights = model.weights._replace(layers=tuple(layers))
    model.ahead.tables = doubles  # type: ignore[assignment]
    return doubles


@pytest.fixture
def engine() -> Iterator[TorchEngine]:
    made = opened("plain", **SIZES)
    yield made
    model = made.model
    assert isinstance(model, Dsv41)
    assert model.ahead is not None
    model.ahead.pool.shutdown(wait=True)


def pieces(length: int = LENGTH) -> list[Piece]:
    return [
        Piece(stream=1, start=start, end=min(start + 32, length)) for start in range(0, length, 32)
    ]


def filled(engine: TorchEngine, tokens: Sequence[int]) -> list[Filled]:
    engine.open(Opening(stream=1, prompt=tuple(tokens), most=8, logprobs=2))
    found = []
    for piece in pieces(len(tokens)):
        found += engine.fill([piece]).land()
    engine.close(1)
    return found


def names_of(engine: TorchEngine, tokens: Sequence[int], piece: Piece) -> list[set[int]]:
    """By table: the rows that a piece's own rows name, from a run of the whole prompt."""
    model = engine.model
    assert isinstance(model, Dsv41)
    assert model.ahead is not None
    whole = model.ahead.names(tokens[max(0, piece.start - 3) : piece.end], piece.start, piece.end)
    return [set(part.tolist()) for part in whole]


def test_the_next_pieces_rows_are_read_while_this_one_runs(engine: TorchEngine) -> None:
    tokens = some_tokens(LENGTH)
    tables = slowed(engine)
    engine.open(Opening(stream=1, prompt=tuple(tokens), most=8))
    for piece, after in zip(pieces(), [*pieces()[1:], None], strict=True):
        # Inside this forward its table waits for the rows of the next: none come if nobody else
        # reads them.
        for number, table in enumerate(tables):
            table.until = names_of(engine, tokens, after)[number] if after else set()
        engine.fill([piece]).land()
    engine.close(1)
    for table in tables:
        assert table.cold[1:] == [0] * (len(pieces()) - 1)


def test_what_is_read_ahead_is_what_forwards_ask_for(engine: TorchEngine) -> None:
    """Also where n-grams begin before the piece, and before the prompt."""
    tokens = some_tokens(LENGTH)
    tables = slowed(engine)
    filled(engine, tokens)
    for number, table in enumerate(tables):
        for piece, asked in zip(pieces(), table.asked, strict=True):
            assert names_of(engine, tokens, piece)[number] == asked


def test_a_slow_disk_is_waited_for_once_and_changes_no_bit(engine: TorchEngine) -> None:
    tokens = some_tokens(LENGTH)
    wanted = filled(opened("plain", tables="memory", **SIZES), tokens)
    tables = slowed(engine, pause=0.02)
    assert filled(engine, tokens) == wanted
    assert all(len(table.cold) == len(pieces()) for table in tables)


def test_tables_in_memory_are_not_read_ahead() -> None:
    made = opened("plain", tables="memory", **SIZES)
    tables = slowed(made)
    filled(made, some_tokens(LENGTH))
    assert all(count > 0 for table in tables for count in table.cold[:1])
    assert all(table.known == set().union(*table.asked) for table in tables)
    assert made.reader is None


def test_reading_ahead_that_fails_is_told_and_ends_the_engine(engine: TorchEngine) -> None:
    tokens = some_tokens(LENGTH)
    for table in slowed(engine):
        table.touch = broken  # type: ignore[method-assign]
    with pytest.raises(EngineLost, match="reading rows of a table ahead failed: the disk is gone"):
        again_and_again(engine, tokens)


def again_and_again(engine: TorchEngine, tokens: Sequence[int]) -> None:
    """Reading ahead fails beside a forward, and is told by a later call."""
    for _ in range(200):
        filled(engine, tokens)
        time.sleep(0.01)


def broken(name_N: Tensor) -> None:
    raise OSError("the disk is gone")


def copied(folder: Path) -> Path:
    for name in ("config.json", "model.safetensors", "engram_token_map.json"):
        shutil.copyfile(CKPT / name, folder / name)
    return folder


@pytest.mark.parametrize("call", ["fill", "round"])
def test_a_table_that_is_cut_short_while_it_is_served_is_named(tmp_path: Path, call: str) -> None:
    engine = opened("plain", copied(tmp_path), **SIZES)
    path = tmp_path / "model.safetensors"
    size = path.stat().st_size
    engine.open(Opening(stream=1, prompt=tuple(some_tokens(20)), most=8))
    if call == "round":
        (first,) = engine.fill([Piece(stream=1, start=0, end=20)]).land()
        assert first.token is not None
    os.truncate(path, size - 4096)
    why = rf"model\.safetensors is {size - 4096} bytes long and was {size} at the start"
    with pytest.raises(EngineLost, match=why):
        run_on(engine, call)


def run_on(engine: TorchEngine, call: str) -> None:
    if call == "round":
        engine.round([Window(stream=1, tokens=(5,))]).land()
    else:
        engine.fill([Piece(stream=1, start=0, end=20)]).land()


def test_a_table_whose_file_was_removed_or_replaced_is_read_on(tmp_path: Path) -> None:
    engine = opened("plain", copied(tmp_path), **SIZES)
    tokens = some_tokens(40)
    wanted = filled(engine, tokens)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert filled(engine, tokens) == wanted


def test_a_missing_file_of_a_table_is_named_at_start(tmp_path: Path) -> None:
    tensors = load_file(copied(tmp_path) / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    table = "layers.4.engram.embed.weight"
    where = {
        name: "tables.safetensors" if name == table else "rest.safetensors" for name in tensors
    }
    for file in set(where.values()):
        own = {name: tensor for name, tensor in tensors.items() if where[name] == file}
        save_file(own, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    tokens = some_tokens(20)
    assert filled(opened("plain", tmp_path, **SIZES), tokens) == filled(
        opened("plain", **SIZES), tokens
    )
    whole = (tmp_path / "tables.safetensors").read_bytes()
    for data, why in ((whole[:-1], "tables.safetensors is truncated"), (b"", "is empty")):
        (tmp_path / "tables.safetensors").write_bytes(data)
        with pytest.raises(StartError, match=why):
            opened("plain", tmp_path, **SIZES)
    (tmp_path / "tables.safetensors").unlink()
    with pytest.raises(StartError, match=f"'{table}' in tables.safetensors, which is not there"):
        opened("plain", tmp_path, **SIZES)


@torch.inference_mode()
def test_looking_at_rows_takes_packed_ones_too() -> None:
    packed = torch.zeros(50, 64).to(torch.float8_e4m3fn)
    scale = torch.zeros(50, 2, dtype=torch.uint8)
    engram.Table(packed, scale).touch(torch.tensor([0, 3, 49]))
    with pytest.raises(IndexError):
        engram.Table(packed, scale).touch(torch.tensor([50]))
