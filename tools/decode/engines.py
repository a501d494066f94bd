"""Engines over weights that are nowhere: made on the device, each tensor when it is asked for."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.backend_api import EngineOrder, Place, Progress
from tensorfold.core.checkpoint.digests import NO_CONTENTS, Contents
from tensorfold.core.checkpoint.folder import WHOLE, Skipped, held
from tensorfold.core.checkpoint.load import places
from tensorfold.core.engine.agreement import Found
from tensorfold.core.engine.open_engine import Device, open_torch_engine
from tensorfold.core.engine.table_files import TableFile
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import Family, TensorSpec
from tensorfold.core.settings import Settings
from tensorfold.core.share import Share

# Modules with `device_of(order)`, and for what exactness costs `free_candidates()`.
DEVICES = {
    "cpu-reference": "tensorfold.backends.cpu_reference.backend",
    "cuda-triton": "tensorfold.backends.cuda_triton.backend",
}


class RandomTensors(Mapping[str, Tensor]):
    """Norms are ones, matrices keep a row's size, and a name has one value always; a rank has its
    part of that."""

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        *,
        dtype: torch.dtype,
        device: torch.device,
        share: Share = WHOLE,
    ) -> None:
        self.specs = {spec.name: spec for spec in specs if held(spec, share)}
        self.dtype, self.device, self.share = dtype, device, share

    def __getitem__(self, name: str) -> Tensor:
        spec = self.specs[name]
        made = self.whole(name)
        return made if spec.axis is None else made[places(spec, self.share)].clone()

    def whole(self, name: str) -> Tensor:
        spec = self.specs[name]
        dtype = torch.promote_types(self.dtype, getattr(torch, spec.dtype or "bool"))
        if "norm" in name and len(spec.shape) == 1:
            return torch.ones(spec.shape, dtype=dtype, device=self.device)
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
        scale = spec.shape[-1] ** -0.5 if len(spec.shape) > 1 else 0.2
        made = torch.empty(spec.shape, dtype=dtype, device=self.device)
        return made.normal_(0, scale, generator=generator)

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


class RandomSource:
    """A `Source` of random tensors under a config; `folder` has the files that go with them."""

    def __init__(self, raw: dict[str, Any], folder: Path) -> None:
        self.raw, self.folder = raw, folder

    def config(self) -> dict[str, Any]:
        return self.raw

    def check(self, specs: Sequence[TensorSpec], ignored: Callable[[str], str]) -> None:
        return None

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
        return RandomTensors(specs, dtype=dtype, device=device, share=share)

    def skipped(self, ignored: Callable[[str], str]) -> Mapping[str, Skipped]:
        return {}

    def table_bytes(self, specs: Sequence[TensorSpec]) -> int:
        return 0

    def table_files(self, specs: Sequence[TensorSpec]) -> Sequence[TableFile]:
        return ()

    def contents(self, cache: Path | None, progress: Progress) -> Contents:
        return NO_CONTENTS


def everything(*args: Any) -> bool:
    return True


def agrees(*args: Any, **sizes: Any) -> Found:
    return Found((), ())


def opened(
    family: Family,
    raw: dict[str, Any],
    backend: str,
    settings: Settings,
    progress: Progress,
    *,
    free: bool = False,
    checked: bool = True,
    place: Place | None = None,
) -> TorchEngine:
    """An engine of random weights, opened as any other, one of several ranks at a `place`; `free`
    takes library products without a check. Raises `StartError`."""
    if backend not in DEVICES:
        raise StartError(f"--backend is {backend}: one of {', '.join(DEVICES)} is needed")
    module = import_module(DEVICES[backend])
    order = EngineOrder(settings=settings, family=family, progress=progress, place=place)
    device: Device = module.device_of(order)
    if free:
        device = replace(device, candidates=module.free_candidates(), verdict=everything)
    if free or not checked:
        device = replace(device, agree=agrees)
    with TemporaryDirectory() as folder:
        write_token_map(raw, Path(folder))
        return open_torch_engine(order, device, RandomSource(raw, Path(folder)))


def write_token_map(raw: dict[str, Any], folder: Path) -> None:
    """What a release with Engram layers has beside its weights: which ids are the same word."""
    text = raw["text_config"]
    if words := text.get("engram_compressed_vocab_size"):
        found = [token % words for token in range(text["vocab_size"])]
        (folder / "engram_token_map.json").write_text(json.dumps(found))
