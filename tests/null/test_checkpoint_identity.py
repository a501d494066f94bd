"""The hash of an engine: what changes bits changes it, what does not leaves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorfold.core.checkpoint import contents_of, identity, open_checkpoint
from tensorfold.core.checkpoint.header import Shard

BITS = {"backend": "cpu-reference", "dtype": "float32", "compile": False}


def checkpoint_in(
    folder: Path, *, value: bytes = b"abcd", name: str = "a", recorded: str = ""
) -> Path:
    folder.mkdir(exist_ok=True)
    header: dict[str, object] = {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    if recorded:
        header["__metadata__"] = {"sha256": recorded}
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + value)
    (folder / "config.json").write_text('{"eps": 1}')
    return folder


def hashed(folder: Path, **options: Path) -> str:
    return identity(BITS, contents_of(open_checkpoint(folder), **options))


def test_the_same_weights_elsewhere_have_the_same_identity(tmp_path: Path) -> None:
    one, two = (hashed(checkpoint_in(tmp_path / name)) for name in ("one", "two"))
    assert one == two
    assert len(one) == 64


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: checkpoint_in(folder, value=b"abce"),
        lambda folder: checkpoint_in(folder, name="b"),
        lambda folder: (folder / "config.json").write_text('{"eps": 2}'),
    ],
    ids=["one byte", "a name", "the config"],
)
def test_whatever_changes_bits_changes_the_identity(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    before = hashed(checkpoint_in(tmp_path))
    change(tmp_path)
    assert hashed(tmp_path) != before


def test_bits_and_version_are_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert identity(BITS) == identity(dict(reversed(BITS.items())))
    assert identity(BITS) != identity({**BITS, "compile": True})
    before = identity(BITS)
    monkeypatch.setattr("tensorfold.core.checkpoint.digests.VERSION", "999")
    assert identity(BITS) != before


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The shards that were hashed, when every shard counts as a large one."""
    module = "tensorfold.core.checkpoint.digests"
    hashed_shards: list[Path] = []

    def digest(shard: Shard) -> str:
        hashed_shards.append(shard.path)
        return shard.path.read_bytes().hex()

    monkeypatch.setattr(f"{module}.SMALL_BYTES", 0)
    monkeypatch.setattr(f"{module}.content_digest", digest)
    return hashed_shards


def test_a_large_shard_is_hashed_once_and_again_when_it_changes(
    tmp_path: Path, counted: list[Path]
) -> None:
    folder, cache = checkpoint_in(tmp_path / "model"), tmp_path / "cache" / "deeper"
    first = hashed(folder, cache=cache)
    assert hashed(folder, cache=cache) == first
    assert len(counted) == 1
    checkpoint_in(folder, value=b"other"[:4])
    assert hashed(folder, cache=cache) != first
    assert len(counted) == 2


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}'])
def test_a_spoilt_cache_is_worked_out_again(
    tmp_path: Path, counted: list[Path], content: str
) -> None:
    folder, cache = checkpoint_in(tmp_path / "model"), tmp_path / "cache"
    right = hashed(folder, cache=cache)
    (cache / "digests.json").write_text(content)
    assert hashed(folder, cache=cache) == right
    assert len(counted) == 2


def test_a_cache_that_cannot_be_written_costs_time_only(
    tmp_path: Path, counted: list[Path]
) -> None:
    (tmp_path / "file").touch()
    folder = checkpoint_in(tmp_path / "model")
    assert hashed(folder, cache=tmp_path / "file" / "cache") == hashed(folder)
    assert len(counted) == 2


def test_a_recorded_digest_stands_for_a_large_shard_and_never_for_a_small_one(
    tmp_path: Path, counted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint_in(tmp_path, recorded="0" * 64)
    hashed(folder)
    assert counted == []
    monkeypatch.setattr("tensorfold.core.checkpoint.digests.SMALL_BYTES", 1 << 20)
    hashed(folder)
    assert len(counted) == 1
