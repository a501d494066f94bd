"""A checkpoint's folder: one safetensors file, or several and the index that says what is where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from tensorfold.core.backend_api import Progress, no_progress
from tensorfold.core.checkpoint.config import declared_dtype, read_config, read_object
from tensorfold.core.checkpoint.header import Shard, Stored, read_shard
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import TensorSpec
from tensorfold.core.share import Share

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_INDEX = 256 << 20

WHOLE = Share()

# Formats whose values are numbers as they stand; packed ones come with their own reader.
PLAIN_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The headers of a folder's weights, `place` mapping a name to its shard; no data is read."""

    folder: Path
    shards: tuple[Shard, ...]
    place: Mapping[str, Shard]

    def stored(self, name: str) -> Stored:
        return self.place[name].tensors[name]

    def check(self, specs: Sequence[TensorSpec], ignored: Callable[[str], str]) -> None:
        """Raise `StartError` where a tensor is missing, misshapen, unreadable or left over."""
        missing = [spec.name for spec in specs if spec.name not in self.place]
        if missing:
            raise StartError(f"{self.folder} lacks {told(missing)}")
        config_file = self.folder / "config.json"
        declared = declared_dtype(read_config(self.folder)) if config_file.is_file() else None
        if declared is not None and declared not in PLAIN_DTYPES:
            raise StartError(
                f"{config_file}: dtype is {declared!r}, which is not read yet "
                f"({', '.join(PLAIN_DTYPES)} are)"
            )
        for spec in specs:
            check_tensor(self.place[spec.name].path, self.stored(spec.name), spec.shape, declared)
        wanted = {spec.name for spec in specs}
        left_over = [name for name in self.place if name not in wanted and not ignored(name)]
        if left_over:
            raise StartError(f"{self.folder} holds {told(left_over)}, which the model never reads")

    def skipped(self, ignored: Callable[[str], str]) -> dict[str, Skipped]:
        """What is passed over, by the name of its part."""
        found: dict[str, Skipped] = {}
        for name, shard in self.place.items():
            if part := ignored(name):
                tensors, size = found.get(part, Skipped(0, 0))
                stored = shard.tensors[name]
                found[part] = Skipped(tensors + 1, size + stored.end - stored.begin)
        return found

    def load(
        self,
        specs: Sequence[TensorSpec],
        ignored: Callable[[str], str],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        progress: Progress = no_progress,
        tables: str = "disk",
        share: Share = WHOLE,
    ) -> dict[str, Tensor]:
        """Check completeness, then read every tensor of `specs` into memory of its own.

        Of what ranks cut, only what `share` holds is read; of the rest, all.
        Tensors are converted to `dtype` and moved to `device` one at a time; `progress` is told
        bytes of the files. Tables keep their format and stay on the host: mapped from their file
        with `tables` disk, copied with memory; with device, they are on it. Raises `StartError`.
        """
        from tensorfold.core.checkpoint.load import load_tensors

        self.check(specs, ignored)
        return load_tensors(
            self,
            [spec for spec in specs if held(spec, share)],
            dtype=dtype,
            device=device,
            progress=progress,
            tables=tables,
            share=share,
        )


class Skipped(NamedTuple):
    """What a part that is not served has in a checkpoint."""

    tensors: int
    bytes: int


def held(spec: TensorSpec, share: Share) -> bool:
    """Whether a rank reads anything of a tensor."""
    first, last = share.run(spec.units)
    return spec.unit is None or first <= spec.unit < last


def told(names: Sequence[str]) -> str:
    """Tensors in words: the first by name, the rest by number."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"tensor {names[0]!r}{more}"


def check_tensor(path: Path, tensor: Stored, shape: tuple[int, ...], declared: str | None) -> None:
    """Check one tensor against its spec and against the dtype that config.json declares."""
    if tensor.shape != tuple(shape):
        raise StartError(
            f"{path}: tensor {tensor.name!r} has shape {list(tensor.shape)}, "
            f"and config.json asks for {list(shape)}"
        )
    if tensor.dtype not in PLAIN_DTYPES.values():
        raise StartError(
            f"{path}: tensor {tensor.name!r} is {tensor.dtype}, which is not read yet "
            f"({', '.join(PLAIN_DTYPES.values())} are)"
        )
    # Narrow checkpoints keep a few sensitive tensors in float32.
    if tensor.dtype not in ("F32", PLAIN_DTYPES.get(declared or "", tensor.dtype)):
        raise StartError(
            f"{path}: tensor {tensor.name!r} is {tensor.dtype}, and config.json says {declared}"
        )


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read and check every header of a folder's weights. Raises `StartError`."""
    single, index = folder / SINGLE, folder / INDEX
    if not folder.is_dir():
        raise StartError(f"there is no folder {folder}")
    if present(single) and present(index):
        raise StartError(f"{folder} holds both {SINGLE} and {INDEX}: remove one of them")
    if present(single):
        shard = read_shard(single)
        return Checkpoint(folder=folder, shards=(shard,), place=dict.fromkeys(shard.tensors, shard))
    if present(index):
        return open_index(folder, index)
    pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
    hint = " (only safetensors are read, never pickles)" if pickled else ""
    raise StartError(f"{folder} holds neither {SINGLE} nor {INDEX}{hint}")


def present(path: Path) -> bool:
    """Whether a name is there, be it a link that leads nowhere: that is told when it is read."""
    return path.exists() or path.is_symlink()


def open_index(folder: Path, index: Path) -> Checkpoint:
    """The shards that an index names, each holding just the tensors that the index says."""
    weight_map = read_weight_map(index)
    shards = {}
    for tensor, name in weight_map.items():
        if name not in shards:
            check_name(index, tensor, name)
            if not present(folder / name):
                raise StartError(f"{index} places tensor {tensor!r} in {name}, which is not there")
            shards[name] = read_shard(folder / name)
    check_places(index, weight_map, shards)
    place = {tensor: shards[name] for tensor, name in weight_map.items()}
    return Checkpoint(folder=folder, shards=tuple(shards.values()), place=place)


def read_weight_map(index: Path) -> dict[str, str]:
    weight_map = read_object(index, MOST_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise StartError(f"{index} has no weight_map of tensors to files")
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise StartError(f"{index} places tensor {tensor!r} in {name!r}, which is no file name")
    return weight_map


def check_name(index: Path, tensor: str, name: str) -> None:
    """A shard is a file of the folder itself: a path could lead anywhere on the machine."""
    plain = PurePosixPath(name).name == name and not set("\\\0") & set(name)
    if not plain or not name.endswith(".safetensors"):
        raise StartError(
            f"{index} places tensor {tensor!r} in {name!r}: it is no safetensors file of the folder"
        )


def check_places(index: Path, weight_map: Mapping[str, str], shards: Mapping[str, Shard]) -> None:
    for tensor, name in weight_map.items():
        if tensor not in shards[name].tensors:
            really = [other for other, shard in shards.items() if tensor in shard.tensors]
            where = f"it is in {really[0]}" if really else "no shard does"
            raise StartError(
                f"{index} places tensor {tensor!r} in {name}, which lacks it ({where})"
            )
    for name, shard in shards.items():
        for tensor in shard.tensors:
            if weight_map.get(tensor) != name:
                raise StartError(
                    f"{shard.path} holds tensor {tensor!r}, which {index.name} does not place there"
                )
