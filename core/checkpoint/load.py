"""Tensors out of checked shards, memory-mapped and copied one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from tensorfold.core.backend_api import Progress
from tensorfold.core.checkpoint.header import Shard, Stored
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import TensorSpec

if TYPE_CHECKING:
    from tensorfold.core.checkpoint.folder import Checkpoint


DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def mapped(shard: Shard, stored: Stored) -> torch.Tensor:
    """A tensor where it lies in its file, read a page at a time as its rows are asked for."""
    # Copy-on-write: torch has no read-only tensors, and the file must stay as it is.
    raw = np.memmap(
        shard.path,
        dtype=np.uint8,
        mode="c",
        offset=shard.data + stored.begin,
        shape=(stored.end - stored.begin,),
    )
    return torch.from_numpy(raw).view(DTYPES[stored.dtype]).view(stored.shape)


def load_tensors(
    checkpoint: Checkpoint,
    specs: Sequence[TensorSpec],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    progress: Progress,
    tables: str,
) -> dict[str, torch.Tensor]:
    """Every tensor of `specs`, in their order: copies on `device`, of `dtype` or the wider one that
    a spec names, and tables."""
    found: dict[str, torch.Tensor] = {}
    total = sum(
        checkpoint.stored(spec.name).end - checkpoint.stored(spec.name).begin
        for spec in specs
        if not spec.table
    )
    by_row = {spec.name for spec in specs if spec.table}
    own = {
        spec.name: torch.promote_types(dtype, getattr(torch, spec.dtype or "bool"))
        for spec in specs
    }
    done = 0
    for shard in checkpoint.shards:
        names = [spec.name for spec in specs if checkpoint.place[spec.name] is shard]
        try:
            with safe_open(shard.path, framework="pt") as file:
                for name in names:
                    stored = shard.tensors[name]
                    if name in by_row:
                        table = mapped(shard, stored)
                        found[name] = table if tables == "disk" else table.clone()
                        continue
                    found[name] = file.get_tensor(name).to(
                        device=device, dtype=own[name], copy=True
                    )
                    done += stored.end - stored.begin
                    progress("reading weights", done, total)
        except SafetensorError as error:
            raise StartError(f"{shard.path} changed while it was read: {error}") from None
    for spec in specs:
        shape = tuple(found[spec.name].shape)
        assert shape == tuple(spec.shape), (spec.name, shape, spec.shape)
    return {spec.name: found[spec.name] for spec in specs}
