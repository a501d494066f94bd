"""Tensors come out of a checkpoint as they went in, checked first, in memory of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tensorfold.core.checkpoint import open_checkpoint
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import TensorSpec
from tensorfold.core.share import Share


def never(name: str) -> bool:
    return False


TENSORS = {
    "wide": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7,
    "narrow": torch.arange(5).to(torch.bfloat16) / 3,
    "half": torch.arange(4).to(torch.float16) / 3,
    "none": torch.zeros(0, 3),
    "number": torch.tensor(2.5),
}
SPECS = [TensorSpec(name, tuple(tensor.shape)) for name, tensor in TENSORS.items()]


def in_two_shards(folder: Path) -> None:
    shards = {"one.safetensors": ["narrow", "number"], "two.safetensors": ["wide", "half", "none"]}
    for name, tensors in shards.items():
        save_file({tensor: TENSORS[tensor] for tensor in tensors}, folder / name)
    places = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_tensor_is_read_in_the_asked_order_and_dtype(
    tmp_path: Path, shards: int, dtype: torch.dtype
) -> None:
    if shards == 1:
        save_file(TENSORS, tmp_path / "model.safetensors")
    else:
        in_two_shards(tmp_path)
    told: list[tuple[str, int, int]] = []
    loaded = open_checkpoint(tmp_path).load(
        SPECS, never, dtype=dtype, progress=lambda *step: told.append(step)
    )
    assert list(loaded) == list(TENSORS)
    for name, tensor in loaded.items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, TENSORS[name].to(dtype)), name
    sizes = [tensor.numel() * tensor.element_size() for tensor in TENSORS.values()]
    assert told[-1] == ("reading weights", sum(sizes), sum(sizes))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_loaded_tensors_outlive_the_file_and_do_not_follow_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1000)}, path)
    loaded = open_checkpoint(tmp_path).load([TensorSpec("a", (1000,))], never, dtype=torch.float32)
    content = bytearray(path.read_bytes())
    content[-4000:] = bytes(4000)
    path.write_bytes(content)
    assert torch.equal(loaded["a"], torch.ones(1000))


@pytest.mark.parametrize("length", range(99_990, 100_011))
def test_a_header_of_about_the_readers_first_read_loads(tmp_path: Path, length: int) -> None:
    entry = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    raw = json.dumps(entry).encode().ljust(length)
    one = b"\x00\x00\x80\x3f"
    content = length.to_bytes(8, "little") + raw + one
    (tmp_path / "model.safetensors").write_bytes(content)
    loaded = open_checkpoint(tmp_path).load([TensorSpec("a", (1,))], never, dtype=torch.float32)
    assert loaded["a"].tolist() == [1.0]


def test_an_incomplete_checkpoint_is_refused_before_a_byte_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    told: list[str] = []
    with pytest.raises(StartError, match="lacks tensor 'b'"):
        open_checkpoint(tmp_path).load(
            [TensorSpec("a", (1,)), TensorSpec("b", (1,))],
            never,
            dtype=torch.float32,
            progress=lambda *step: told.append(step[0]),
        )
    assert told == []


def test_a_file_replaced_after_its_header_was_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4)}, path)
    checkpoint = open_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(StartError, match="changed while it was read"):
        checkpoint.load([TensorSpec("a", (4,))], never, dtype=torch.float32)


CUT = torch.arange(96, dtype=torch.float32).reshape(4, 24)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(("axis", "units"), [(0, 4), (1, 8)])
def test_ranks_read_their_own_runs_of_a_cut_axis_and_all_of_it_together(
    tmp_path: Path, ranks: int, axis: int, units: int
) -> None:
    save_file({"cut": CUT, "all": CUT + 1}, tmp_path / "model.safetensors")
    specs = [TensorSpec("cut", (4, 24), axis=axis, units=units), TensorSpec("all", (4, 24))]
    parts = []
    for rank in range(ranks):
        told: list[tuple[str, int, int]] = []
        loaded = open_checkpoint(tmp_path).load(
            specs,
            never,
            dtype=torch.float32,
            progress=lambda *step, told=told: told.append(step),
            share=Share(rank=rank, ranks=ranks),
        )
        parts.append(loaded["cut"])
        assert torch.equal(loaded["all"], CUT + 1)
        read = 4 * (parts[-1].numel() + CUT.numel())
        assert told[-1] == ("reading weights", read, read)
    assert torch.equal(torch.cat(parts, axis), CUT)
    sizes = [part.shape[axis] * units // CUT.shape[axis] for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_a_tensor_of_one_unit_is_read_by_the_rank_that_holds_it(tmp_path: Path) -> None:
    tensors = {f"expert.{index}": torch.full((2,), float(index)) for index in range(16)}
    save_file(tensors, tmp_path / "model.safetensors")
    specs = [TensorSpec(f"expert.{i}", (2,), units=8, unit=i // 2) for i in range(16)]
    found = [
        list(
            open_checkpoint(tmp_path).load(
                specs, never, dtype=torch.float32, share=Share(rank=rank, ranks=3)
            )
        )
        for rank in range(3)
    ]
    assert [len(names) for names in found] == [4, 6, 6]
    assert [name for names in found for name in names] == list(tensors)


def test_a_rank_checks_what_it_does_not_read(tmp_path: Path) -> None:
    save_file({"cut": CUT}, tmp_path / "model.safetensors")
    specs = [TensorSpec("cut", (4, 24), axis=1, units=8), TensorSpec("b", (1,), units=8, unit=7)]
    with pytest.raises(StartError, match="lacks tensor 'b'"):
        open_checkpoint(tmp_path).load(
            specs, never, dtype=torch.float32, share=Share(rank=0, ranks=2)
        )
