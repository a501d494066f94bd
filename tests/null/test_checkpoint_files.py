"""A checkpoint's files are believed only as far as they bear themselves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensorfold.core.checkpoint import Checkpoint, open_checkpoint, read_config
from tensorfold.core.checkpoint.header import read_shard
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import TensorSpec

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def entry(begin: int, end: int, shape: Any = None, dtype: Any = "F32") -> dict[str, Any]:
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def shard_bytes(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def good_shard(*names: str) -> bytes:
    """A shard that holds one float32 of each name."""
    header = {name: entry(4 * i, 4 * i + 4) for i, name in enumerate(names)}
    return shard_bytes(header, bytes(4 * len(names)))


def opened(folder: Path, content: bytes) -> Checkpoint:
    (folder / SINGLE).write_bytes(content)
    return open_checkpoint(folder)


def refusal(folder: Path, content: bytes) -> str:
    with pytest.raises(StartError) as caught:
        opened(folder, content)
    words = str(caught.value)
    assert SINGLE in words
    assert "\n" not in words
    return words


def test_a_good_file_gives_names_shapes_dtypes_and_places(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry(8, 20, [2, 3], "BF16"),
        "a": entry(0, 8),
        "none": entry(20, 20, [0, 4]),
        "half": entry(20, 21, [2], "F4"),
    }
    checkpoint = opened(tmp_path, shard_bytes(header, bytes(21)))
    stored = checkpoint.stored("b")
    assert (stored.dtype, stored.shape, stored.begin, stored.end) == ("BF16", (2, 3), 8, 20)
    assert set(checkpoint.place) == {"a", "b", "none", "half"}
    assert checkpoint.shards[0].size == (tmp_path / SINGLE).stat().st_size


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"short", "is 5 bytes long: it is no safetensors file"),
        (b"version https://git-lfs.example/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "claims a header of"),
        (shard_bytes({}, length=100_000_001), "claims a header of 100000001 bytes"),
        (shard_bytes({}, length=3), "is truncated: its header needs 3 bytes and 2 are there"),
        (shard_bytes(b""), "header that is not JSON"),
        (shard_bytes(b"{'a': 1}"), "header that is not JSON"),
        (shard_bytes(b'{"a": '), "header that is not JSON"),
        (shard_bytes(b'{"\xff": 1}'), "header that is not JSON"),
        (shard_bytes(b"[" * 99_999), "header that is not JSON"),
        (shard_bytes(b'{"a": ' + b"9" * 9_999 + b"}"), "header that is not JSON"),
        (shard_bytes([]), "no JSON object"),
        (shard_bytes({"__metadata__": {"format": 1}}), "__metadata__ that is no object of texts"),
        (shard_bytes({"__metadata__": [1]}), "__metadata__ that is no object of texts"),
        (shard_bytes({"a": 1}), "does not give dtype, shape and data_offsets"),
        (
            shard_bytes({"a": {"dtype": "F32", "shape": []}}),
            "does not give dtype, shape and data_o",
        ),
        (shard_bytes({"a": {**entry(0, 4), "more": 1}}, bytes(4)), "and only those, of 'a'"),
        (shard_bytes({"a": entry(0, 4, [1], "F33")}, bytes(4)), "'a' of the unknown dtype 'F33'"),
        (shard_bytes({"a": entry(0, 4, [1], ["F32"])}, bytes(4)), "unknown dtype ['F32']"),
        (shard_bytes({"a": entry(0, 4, [-1])}, bytes(4)), "'a' a shape that is none: [-1]"),
        (shard_bytes({"a": entry(0, 4, [1.0])}, bytes(4)), "'a' a shape that is none: [1.0]"),
        (shard_bytes({"a": entry(0, 4, [True])}, bytes(4)), "'a' a shape that is none: [True]"),
        (shard_bytes({"a": entry(0, 4, "1")}, bytes(4)), "'a' a shape that is none: '1'"),
        (shard_bytes({"a": entry(0, 4, [1] * 99)}, bytes(4)), "'a' a shape that is none"),
        (shard_bytes({"a": entry(4, 0, [1])}, bytes(4)), "'a' offsets that are none: [4, 0]"),
        (shard_bytes({"a": entry(-4, 0, [1])}, bytes(4)), "'a' offsets that are none: [-4, 0]"),
        (shard_bytes({"a": entry(0, 8, [3])}, bytes(8)), "F32 [3] in 8 bytes; it needs 12"),
        (shard_bytes({"a": entry(0, 8, [2], "BF16")}, bytes(8)), "BF16 [2] in 8 bytes; it needs 4"),
        (shard_bytes({"a": entry(0, 8, [1 << 62] * 16)}, bytes(8)), "in 8 bytes; it needs"),
        (shard_bytes({"a": entry(0, 8)}, bytes(7)), "truncated: its tensors need 8 bytes and 7"),
        (shard_bytes({"a": entry(0, 1 << 60)}, bytes(4)), "truncated: its tensors need"),
        (
            shard_bytes({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
            "holds tensors 'a' and 'b' in the same bytes",
        ),
        (
            shard_bytes({"a": entry(0, 8), "b": entry(0, 8)}, bytes(8)),
            "holds tensors 'a' and 'b' in the same bytes",
        ),
        (
            shard_bytes({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12)),
            "has 4 unnamed bytes before 'b'",
        ),
        (shard_bytes({"a": entry(4, 8)}, bytes(8)), "has 4 unnamed bytes before 'a'"),
        (good_shard("a") + b"\0", "has 1 bytes after its last tensor"),
        (shard_bytes({}, b"tail"), "has 4 bytes after its last tensor"),
    ],
)
def test_a_malformed_file_is_refused_in_one_sentence_that_names_it(
    tmp_path: Path, content: bytes, words: str
) -> None:
    assert words in refusal(tmp_path, content)


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry(0, 4))
    raw = f'{{"a": {one}, "a": {one}}}'.encode()
    assert "names 'a' twice" in refusal(tmp_path, shard_bytes(raw, bytes(4)))


@pytest.mark.parametrize("length", [8, 99_983, *range(99_990, 100_011), 131_072, 1_000_003])
def test_a_header_of_any_length_is_read_whole(tmp_path: Path, length: int) -> None:
    header = json.dumps({"a": entry(0, 4)}).encode() if length > 8 else b"{}"
    checkpoint = opened(tmp_path, shard_bytes(header.ljust(length), bytes(4 if length > 8 else 0)))
    assert checkpoint.shards[0].data == 8 + length
    assert set(checkpoint.place) == ({"a"} if length > 8 else set())


def test_every_cut_of_a_good_file_is_refused(tmp_path: Path) -> None:
    content = good_shard("a", "b")
    for cut in range(len(content)):
        refusal(tmp_path, content[:cut])


def test_a_digest_follows_header_and_size_alone(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("1", "2", "3"))
    first.write_bytes(shard_bytes({"a": entry(0, 4)}, b"1234"))
    second.write_bytes(shard_bytes({"a": entry(0, 4)}, b"5678"))
    third.write_bytes(shard_bytes({"b": entry(0, 4)}, b"1234"))
    digests = [read_shard(path).digest for path in (first, second, third)]
    assert digests[0] == digests[1] != digests[2]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / SINGLE).mkdir()
    with pytest.raises(StartError, match="is no file"):
        open_checkpoint(tmp_path)
    (tmp_path / SINGLE).rmdir()
    (tmp_path / SINGLE).symlink_to(tmp_path / "gone")
    with pytest.raises(StartError, match="cannot be read: No such file"):
        open_checkpoint(tmp_path)


def test_a_folder_without_weights_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="there is no folder"):
        open_checkpoint(tmp_path / "gone")
    with pytest.raises(StartError, match=f"holds neither {SINGLE} nor {INDEX}$"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(StartError, match="only safetensors are read, never pickles"):
        open_checkpoint(tmp_path)


def write_index(folder: Path, weight_map: Any) -> Path:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "one.safetensors").write_bytes(good_shard("a", "b"))
    (folder / "two.safetensors").write_bytes(good_shard("c"))
    return folder


RIGHT = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}


def test_an_index_joins_its_shards(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_index(tmp_path, RIGHT))
    assert {name: shard.path.name for name, shard in checkpoint.place.items()} == RIGHT
    assert len(checkpoint.shards) == 2


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ([], "has no weight_map"),
        ({}, "has no weight_map"),
        ({"a": 1}, "places tensor 'a' in 1, which is no file name"),
        ({**RIGHT, "d": "three.safetensors"}, "'d' in three.safetensors, which is not there"),
        ({**RIGHT, "c": "one.safetensors"}, "'c' in one.safetensors, which lacks it (no shard"),
        ({**RIGHT, "a": "two.safetensors"}, "which lacks it (it is in one.safetensors)"),
        ({"a": "one.safetensors", "c": "two.safetensors"}, "holds tensor 'b', which"),
        ({**RIGHT, "a": "../one.safetensors"}, "it is no safetensors file of the folder"),
        ({**RIGHT, "a": "/one.safetensors"}, "it is no safetensors file of the folder"),
        ({**RIGHT, "a": "x/../one.safetensors"}, "it is no safetensors file of the folder"),
        ({**RIGHT, "a": "..\\one.safetensors"}, "it is no safetensors file of the folder"),
        ({**RIGHT, "a": "one.safetensors\0"}, "it is no safetensors file of the folder"),
        ({**RIGHT, "a": "one.bin"}, "it is no safetensors file of the folder"),
        ({**RIGHT, "a": ""}, "it is no safetensors file of the folder"),
    ],
)
def test_a_wrong_index_is_refused_naming_tensor_and_file(
    tmp_path: Path, weight_map: Any, words: str
) -> None:
    with pytest.raises(StartError) as caught:
        open_checkpoint(write_index(tmp_path, weight_map))
    assert words in str(caught.value)
    assert INDEX in str(caught.value)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, RIGHT)
    (tmp_path / "two.safetensors").write_bytes(good_shard("c", "a"))
    with pytest.raises(StartError, match=r"two\.safetensors holds tensor 'a', which"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"weight_map": {}, "weight_map": {}}'])
def test_an_index_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(StartError, match=r"index\.json (is not JSON|holds list)"):
        open_checkpoint(tmp_path)


def test_a_folder_with_both_forms_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, RIGHT)
    (tmp_path / SINGLE).write_bytes(good_shard("a"))
    with pytest.raises(StartError, match="holds both"):
        open_checkpoint(tmp_path)


SPECS = [TensorSpec("a", (1,)), TensorSpec("b", (1,))]


def never(name: str) -> bool:
    return False


def test_a_complete_checkpoint_passes_and_ignored_tensors_may_be_there(tmp_path: Path) -> None:
    opened(tmp_path, good_shard("a", "b")).check(SPECS, never)
    seen = opened(tmp_path, good_shard("a", "b", "vision.x"))
    seen.check(SPECS, lambda name: name.startswith("vision."))
    with pytest.raises(StartError, match=r"holds tensor 'vision\.x', which the model never reads"):
        seen.check(SPECS, never)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a",), "lacks tensor 'b'"),
        (("c",), "lacks tensor 'a' and 1 more"),
        (("a", "b", "c", "d"), "holds tensor 'c' and 1 more, which the model never reads"),
    ],
)
def test_a_missing_or_left_over_tensor_is_named(
    tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    with pytest.raises(StartError, match=words):
        opened(tmp_path, good_shard(*names)).check(SPECS, never)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, good_shard("a", "b"))
    with pytest.raises(StartError) as caught:
        checkpoint.check([SPECS[0], TensorSpec("b", (1, 1))], never)
    assert "tensor 'b' has shape [1], and config.json asks for [1, 1]" in str(caught.value)
    assert SINGLE in str(caught.value)


@pytest.mark.parametrize("dtype", ["F64", "I32", "U32"])
def test_a_dtype_that_is_not_read_is_refused_by_name(tmp_path: Path, dtype: str) -> None:
    size = 8 if dtype == "F64" else 4
    checkpoint = opened(tmp_path, shard_bytes({"a": entry(0, size, [1], dtype)}, bytes(size)))
    with pytest.raises(StartError, match=f"tensor 'a' is {dtype}, which is not read yet"):
        checkpoint.check(SPECS[:1], never)


@pytest.mark.parametrize(
    ("config", "dtype", "fits"),
    [
        ({"dtype": "bfloat16"}, "BF16", True),
        ({"dtype": "bfloat16"}, "F32", True),
        ({"dtype": "bfloat16"}, "F16", False),
        ({"torch_dtype": "float32"}, "BF16", False),
        ({"text_config": {"dtype": "float16"}}, "BF16", False),
        ({}, "F16", True),
    ],
)
def test_a_dtype_that_the_config_does_not_say_is_refused(
    tmp_path: Path, config: dict[str, Any], dtype: str, fits: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = 4 if dtype == "F32" else 2
    checkpoint = opened(tmp_path, shard_bytes({"a": entry(0, size, [1], dtype)}, bytes(size)))
    if fits:
        checkpoint.check(SPECS[:1], never)
        return
    with pytest.raises(StartError, match=f"tensor 'a' is {dtype}, and config.json says"):
        checkpoint.check(SPECS[:1], never)


def test_a_dtype_that_no_reader_knows_is_refused_whatever_the_tensors_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "int8"}))
    checkpoint = opened(tmp_path, shard_bytes({"a": entry(0, 2, [1], "BF16")}, bytes(2)))
    with pytest.raises(StartError, match=r"config\.json: dtype is 'int8', which is not read yet"):
        checkpoint.check(SPECS[:1], never)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "holds no config.json"),
        ("", "is not JSON"),
        ("{model_type}", "is not JSON"),
        ("[" * 99_999, "is not JSON"),
        ("version https://git-lfs.example/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
        ('{"a": 1, "a": 2}', "names 'a' twice"),
        ("[1]", "holds list, not a JSON object"),
    ],
)
def test_a_config_that_is_no_object_is_refused(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(StartError) as caught:
        read_config(tmp_path)
    assert words in str(caught.value)
    assert "config.json" in str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="there is no folder"):
        read_config(tmp_path / "gone")
