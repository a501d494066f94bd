"""Where an engine's config and weights come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tensorfold.core.backend_api import EngineOrder, Progress
from tensorfold.core.checkpoint import Checkpoint, contents_of, open_checkpoint, read_config
from tensorfold.core.checkpoint.config import declared_dtype
from tensorfold.core.checkpoint.digests import Contents
from tensorfold.core.checkpoint.folder import Skipped
from tensorfold.core.engine.table_files import TableFile
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import TensorSpec
from tensorfold.core.share import Share


def format_of(order: EngineOrder, formats: Sequence[torch.dtype]) -> torch.dtype:
    """Which of a backend's `formats` an engine has: the order's, else the checkpoint's, else the
    first. Raises `StartError` where none of them is meant."""
    by_name = {str(one).removeprefix("torch."): one for one in formats}
    names = " or ".join(by_name)
    told = order.settings.dtype
    if told and told not in by_name:
        raise StartError(f"--dtype is {told}: backend {order.settings.backend} has {names}")
    declared = None
    if not told and order.folder is not None and len(formats) > 1:
        declared = declared_dtype(read_config(order.folder))
        if declared and declared not in by_name:
            raise StartError(f"the checkpoint is of {declared}: give --dtype {names}")
    return by_name[told or declared or next(iter(by_name))]


class Source(Protocol):
    """`folder` may hold files beside the weights."""

    folder: Path

    def config(self) -> dict[str, Any]:
        """The object of a config.json. Raises `StartError`."""
        ...

    def check(self, specs: Sequence[TensorSpec], ignored: Callable[[str], str]) -> None:
        """Raises `StartError` where tensors are missing, misshapen or unknown."""
        ...

    def load(
        self,
        specs: Sequence[TensorSpec],
        ignored: Callable[[str], str],
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress,
        tables: str,
        share: Share,
    ) -> Mapping[str, Tensor]:
        """Tensors by name, as `Checkpoint.load` gives them."""
        ...

    def skipped(self, ignored: Callable[[str], str]) -> Mapping[str, Skipped]:
        """What is passed over, by the name of its part."""
        ...

    def table_bytes(self, specs: Sequence[TensorSpec]) -> int:
        """Bytes of the tables among `specs`, as they are stored."""
        ...

    def table_files(self, specs: Sequence[TensorSpec]) -> Sequence[TableFile]:
        """The files that tables lie in."""
        ...

    def contents(self, cache: Path | None, progress: Progress) -> Contents:
        """Digests of all of it."""
        ...


class FromFolder:
    """A checkpoint's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: Checkpoint | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        if self.opened is None:
            self.opened = open_checkpoint(self.folder)
        return self.opened

    def config(self) -> dict[str, Any]:
        return read_config(self.folder)

    def check(self, specs: Sequence[TensorSpec], ignored: Callable[[str], str]) -> None:
        self.checkpoint.check(specs, ignored)

    def load(
        self, specs: Sequence[TensorSpec], ignored: Callable[[str], str], **how: Any
    ) -> Mapping[str, Tensor]:
        return self.checkpoint.load(specs, ignored, **how)

    def skipped(self, ignored: Callable[[str], str]) -> Mapping[str, Skipped]:
        return self.checkpoint.skipped(ignored)

    def table_bytes(self, specs: Sequence[TensorSpec]) -> int:
        stored = [self.checkpoint.stored(spec.name) for spec in specs if spec.table]
        return sum(one.end - one.begin for one in stored)

    def table_files(self, specs: Sequence[TensorSpec]) -> Sequence[TableFile]:
        place = self.checkpoint.place
        shards = {place[spec.name].path: place[spec.name].size for spec in specs if spec.table}
        return [TableFile(path, size) for path, size in shards.items()]

    def contents(self, cache: Path | None, progress: Progress) -> Contents:
        return contents_of(self.checkpoint, cache=cache, progress=progress)
