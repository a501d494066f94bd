"""The family as the plugin seam sees it; imports no torch until a model is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorfold.core.errors import StartError
from tensorfold.core.family_api import (
    ChatFormat,
    CutProduct,
    Drafter,
    Family,
    Golden,
    Model,
    TensorSpec,
)
from tensorfold.core.share import IDS, Share
from tensorfold.core.state_spec import StateSpec
from tensorfold.families.glm53 import config as configs
from tensorfold.families.glm53 import names, state
from tensorfold.families.glm53.chat import CHAT
from tensorfold.plugins import hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from tensorfold.core.ops import Ops


# Chained drafts get less likely with each, and each is a forward of the layer.
DRAFTS = 2


class Glm53Family:
    """GLM-5.3-Flash, text part."""

    name = "glm53"
    model_types: tuple[str, ...] = ("glm5_next", "glm5_next_text")
    grid = configs.GRID
    files: tuple[str, ...] = ()
    index_split = "glm_index_split"
    chat = CHAT

    def chat_in(self, folder: Path) -> ChatFormat:
        return CHAT

    def bundled(self) -> Mapping[str, Path]:
        folder = Path(__file__).parent / "tiny"
        return {"tiny-glm53": folder} if (folder / "config.json").exists() else {}

    def config(
        self, raw: Mapping[str, Any], numerics: str = "", expert_cut: str = IDS
    ) -> configs.Config:
        if numerics:
            raise StartError(f"--numerics is {numerics}: glm5_next has one arithmetic")
        return configs.read(raw, expert_cut)

    def numerics(self, config: configs.Config) -> str:
        return ""

    def vocab_size(self, config: configs.Config) -> int:
        return config.vocab_size

    def context(self, config: configs.Config) -> int:
        return config.context

    def end_ids(self, config: configs.Config) -> tuple[int, ...]:
        return config.end_ids

    def drafts(self, config: configs.Config) -> int:
        return DRAFTS if config.mtp_layers > 0 else 0

    def shared(self, config: configs.Config, share: Share) -> configs.Config:
        return configs.shared(config, share)

    def cut_products(self, config: configs.Config) -> Sequence[CutProduct]:
        return names.cut_products(config)

    def tensors(self, config: configs.Config) -> Sequence[TensorSpec]:
        return names.tensors(config)

    def ignored(self, name: str) -> str:
        return "vision" if name.startswith(names.VISION) else ""

    def state_spec(
        self, config: configs.Config, *, window_rows: int, drafts: bool = False
    ) -> StateSpec:
        return state.spec(config, window_rows=window_rows, drafts=drafts)

    def weights(self, config: configs.Config, tensors: Mapping[str, Tensor], folder: Path) -> Any:
        from tensorfold.families.glm53.weights import assemble

        return assemble(config, tensors)

    def model(
        self,
        config: configs.Config,
        weights: Any,
        ops: Ops,
        state: Mapping[str, Tensor],
        compile: Any = None,
    ) -> Model:
        from tensorfold.families.glm53.model import Glm53

        return Glm53(config, weights, ops, state, compile)

    def drafter(
        self,
        config: configs.Config,
        weights: Any,
        ops: Ops,
        state: Mapping[str, Tensor],
        model: Any,
    ) -> Drafter:
        from tensorfold.families.glm53.draft import Mtp

        return Mtp(config, weights, ops, state)

    def golden(self) -> Golden:
        from tensorfold.families.glm53 import golden

        return golden


FAMILY = Glm53Family()


@hookimpl
def register_families() -> list[Family]:
    return [FAMILY]
