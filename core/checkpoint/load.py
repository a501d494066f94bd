"""Tensors out of checked shards, memory-mapped and copied one at a time."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from tensorfold.core.backend_api import Progress
from tensorfold.core.checkpoint.folder import held
from tensorfold.core.checkpoint.header import Shard, Stored
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import TensorSpec
from tensorfold.core.share import Share

if TYPE_CHECKING:
    from tensorfold.core.checkpoint.folder import Checkpoint


DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def mapped(shard: Shard, stored: Stored, *, at_random: bool) -> torch.Tensor:
    """A tensor where it lies in its file, read a page at a time as its rows are asked for."""
    # Copy-on-write: torch has no read-only tensors, and the file must stay as it is.
    with shard.path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if at_random and hasattr(mmap, "MADV_RANDOM"):
        # Rows lie anywhere: what stands beside one is not worth reading.
        whole.madvise(mmap.MADV_RANDOM)
    first, size = shard.data + stored.begin, stored.end - stored.begin
    raw = np.frombuffer(whole, np.uint8, size, first)
    return torch.from_numpy(raw).view(DTYPES[stored.dtype]).view(stored.shape)


def part(spec: TensorSpec, share: Share) -> int:
    """How many of a tensor's units a rank reads, of those it reads anything of."""
    if spec.axis is None:
        return spec.units
    first, last = share.run(spec.units)
    return last - first


def elements(spec: TensorSpec, share: Share) -> int:
    """How many numbers of a tensor a rank reads."""
    if spec.unit is not None:
        return prod(spec.shape) if held(spec, share) else 0
    return prod(spec.shape) * part(spec, share) // spec.units


def places(spec: TensorSpec, share: Share) -> tuple[slice, ...]:
    """What a rank reads of each axis."""
    found = [slice(None)] * len(spec.shape)
    if spec.axis is not None:
        size = spec.shape[spec.axis]
        assert size % spec.units == 0, (spec.name, size, spec.units)
        first, last = share.run(spec.units)
        found[spec.axis] = slice(first * size // spec.units, last * size // spec.units)
    return tuple(found)


def load_tensors(
    checkpoint: Checkpoint,
    specs: Sequence[TensorSpec],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    progress: Progress,
    tables: str,
    share: Share,
) -> dict[str, torch.Tensor]:
    """Every tensor of `specs`, in their order: copies on `device`, of `dtype` or the wider one that
    a spec names, and tables. Of an axis that ranks cut, the share's run is read."""
    found: dict[str, torch.Tensor] = {}
    sizes = {
        spec.name: checkpoint.stored(spec.name).end - checkpoint.stored(spec.name).begin
        for spec in specs
        if not spec.table
    }
    total = sum(
        sizes[spec.name] * part(spec, share) // spec.units for spec in specs if not spec.table
    )
    own = {
        spec.name: torch.promote_types(dtype, getattr(torch, spec.dtype or "bool"))
        for spec in specs
    }
    done = 0
    for shard in checkpoint.shards:
        here = [spec for spec in specs if checkpoint.place[spec.name] is shard]
        try:
            with safe_open(shard.path, framework="pt") as file:
                for spec in here:
                    if spec.table:
                        stored, disk = shard.tensors[spec.name], tables == "disk"
                        table = mapped(shard, stored, at_random=disk)
                        if tables == "memory":
                            table = table.clone()
                        found[spec.name] = table.to(device) if tables == "device" else table
                        continue
                    if spec.axis is None or share.ranks == 1:
                        read = file.get_tensor(spec.name)
                    else:
                        read = file.get_slice(spec.name)[places(spec, share)]
                    found[spec.name] = read.to(device=device, dtype=own[spec.name], copy=True)
                    done += sizes[spec.name] * part(spec, share) // spec.units
                    progress("reading weights", done, total)
        except SafetensorError as error:
            raise StartError(f"{shard.path} changed while it was read: {error}") from None
    for spec in specs:
        shape = tuple(found[spec.name].shape)
        wanted = tuple(spec.shape)
        if spec.axis is not None:
            size = wanted[spec.axis] * part(spec, share) // spec.units
            wanted = (*wanted[: spec.axis], size, *wanted[spec.axis + 1 :])
        assert shape == wanted, (spec.name, shape, wanted)
    return {spec.name: found[spec.name] for spec in specs}
