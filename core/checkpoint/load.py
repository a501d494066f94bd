"""Tensors out of checked shards, memory-mapped and copied one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from tensorfold.core.backend_api import Progress
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import TensorSpec

if TYPE_CHECKING:
    from tensorfold.core.checkpoint.folder import Checkpoint


def load_tensors(
    checkpoint: Checkpoint,
    specs: Sequence[TensorSpec],
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    progress: Progress,
) -> dict[str, torch.Tensor]:
    """Every tensor of `specs`, in their order, as copies of `dtype` on `device`."""
    found: dict[str, torch.Tensor] = {}
    total = sum(
        checkpoint.stored(spec.name).end - checkpoint.stored(spec.name).begin for spec in specs
    )
    done = 0
    for shard in checkpoint.shards:
        names = [spec.name for spec in specs if checkpoint.place[spec.name] is shard]
        try:
            with safe_open(shard.path, framework="pt") as file:
                for name in names:
                    found[name] = file.get_tensor(name).to(device=device, dtype=dtype, copy=True)
                    done += shard.tensors[name].end - shard.tensors[name].begin
                    progress("reading weights", done, total)
        except SafetensorError as error:
            raise StartError(f"{shard.path} changed while it was read: {error}") from None
    for spec in specs:
        shape = tuple(found[spec.name].shape)
        assert shape == tuple(spec.shape), (spec.name, shape, spec.shape)
    return {spec.name: found[spec.name] for spec in specs}
