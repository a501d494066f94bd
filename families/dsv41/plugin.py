"""The family as the plugin seam sees it; imports no torch until a model is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorfold.core.family_api import (
    BlockDrafter,
    ChatFormat,
    CutProduct,
    Family,
    Golden,
    Model,
    TensorSpec,
)
from tensorfold.core.share import IDS, Share
from tensorfold.core.state_spec import StateSpec
from tensorfold.families.dsv41 import config as configs
from tensorfold.families.dsv41 import names, state
from tensorfold.families.dsv41.chat import CHAT, worded
from tensorfold.families.dsv41.wording import tool_wording
from tensorfold.plugins import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from tensorfold.core.ops import Ops


class Dsv41Family:
    """DeepSeek-V4.1-Flash, text part."""

    name = "dsv41"
    model_types: tuple[str, ...] = ("deepseek_v41", "deepseek_v41_text")
    grid = configs.GRID
    # What the Engram token map is read or made from.
    files: tuple[str, ...] = ("engram_token_map.json", "tokenizer.json")
    index_split = "ds_index_split"
    chat = CHAT

    def chat_in(self, folder: Path) -> ChatFormat:
        wording = tool_wording(folder)
        return CHAT if wording is None else worded(wording)

    def bundled(self) -> Mapping[str, Path]:
        folder = Path(__file__).parent / "tiny"
        return {"tiny-dsv41": folder} if (folder / "config.json").exists() else {}

    def config(
        self, raw: Mapping[str, Any], numerics: str = "", expert_cut: str = IDS
    ) -> configs.Config:
        return configs.read(raw, numerics, expert_cut)

    def numerics(self, config: configs.Config) -> str:
        return configs.FAITHFUL if config.faithful else configs.PLAIN

    def vocab_size(self, config: configs.Config) -> int:
        return config.vocab_size

    def context(self, config: configs.Config) -> int:
        return config.context

    def end_ids(self, config: configs.Config) -> tuple[int, ...]:
        return config.end_ids

    def drafts(self, config: configs.Config) -> int:
        return config.drafting.block if config.drafting is not None else 0

    def shared(self, config: configs.Config, share: Share) -> configs.Config:
        return configs.shared(config, share)

    def cut_products(self, config: configs.Config) -> Sequence[CutProduct]:
        return names.cut_products(config)

    def tensors(self, config: configs.Config) -> Sequence[TensorSpec]:
        return names.tensors(config)

    def ignored(self, name: str) -> str:
        return names.ignored(name)

    def state_spec(
        self, config: configs.Config, *, window_rows: int, drafts: bool = False
    ) -> StateSpec:
        return state.spec(config, window_rows=window_rows, drafts=drafts)

    def weights(self, config: configs.Config, tensors: Mapping[str, Tensor], folder: Path) -> Any:
        from tensorfold.families.dsv41.weights import assemble

        return assemble(config, tensors, folder)

    def model(
        self,
        config: configs.Config,
        weights: Any,
        ops: Ops,
        state: Mapping[str, Tensor],
        compile: Any = None,
    ) -> Model:
        from tensorfold.families.dsv41.model import Dsv41

        return Dsv41(config, weights, ops, state, compile)

    def drafter(
        self,
        config: configs.Config,
        weights: Any,
        ops: Ops,
        state: Mapping[str, Tensor],
        model: Any,
    ) -> BlockDrafter:
        from tensorfold.families.dsv41.draft import Dspark

        return Dspark(config, weights, ops, state, model)

    def golden(self) -> Golden:
        from tensorfold.families.dsv41 import golden

        return golden


FAMILY = Dsv41Family()


@hookimpl
def register_families() -> list[Family]:
    return [FAMILY]
