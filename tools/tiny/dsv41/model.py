"""The differentiable deepseek_v41 text model and its official tensor names.

Legend: B sequences, T rows, N streams, D hidden width, J compressed rows, E joined taps.
"""

import math
import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tensorfold.families.dsv41 import rope
from tensorfold.families.dsv41.config import Config
from tensorfold.families.dsv41.engram import hashing
from tensorfold.families.dsv41.token_map import token_map
from tensorfold.tools.tiny.dsv41.attention import Memory, Turn
from tensorfold.tools.tiny.dsv41.draft import Dspark
from tensorfold.tools.tiny.dsv41.halves import AttentionHalf, Handed, MoeHalf, begin
from tensorfold.tools.tiny.dsv41.parts import Norm, engram_rows, linear, turns
from tensorfold.tools.tiny.hyper import collapse, start_streams

# Names here to official ones; experts are taken apart besides.
OFFICIAL = (
    (r"^drafter\.stages\.(\d+)\.", r"mtp.\1."),
    (r"^drafter\.experts\.(\d+)\.", r"mtp.\1.moe."),
    (r"^drafter\.(main_proj|main_norm)\.", r"mtp.0.\1."),
    (r"^drafter\.markov_(\w+)\.", r"mtp.{last}.markov_head.\1."),
    (r"^drafter\.confidence\.", r"mtp.{last}.confidence_head.proj."),
    (r"^drafter\.norm\.", r"mtp.{last}.last_norm."),
    (r"^attentions\.(\d+)\.", r"layers.\1."),
    (r"^experts\.(\d+)\.", r"layers.\1.moe."),
    (r"\.moe\.hyper\.", ".hc_ffn_"),
    (r"\.moe\.norm\.", ".ffn_norm."),
    (r"\.moe\.ffn\.", ".ffn."),
    (r"(layers|mtp)\.(\d+)\.hyper\.", r"\1.\2.hc_attn_"),
    (r"(layers|mtp)\.(\d+)\.norm\.", r"\1.\2.attn_norm."),
    (r"\.last_norm\.", ".norm."),
)


class Ran(NamedTuple):
    """Final-normed hidden rows [B, T, D], what the drafter reads of them [B, T, E]; the sum of the
    indexes' losses; by layer, the experts' loads and what attention read."""

    hidden_BTD: Tensor
    taps_BTE: Tensor | None
    ranking: Tensor | float
    loads: list[Tensor]
    memories: dict[int, Memory]


class Model(nn.Module):
    """`folder` has what the Engram token map is read or made from."""

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = linear(config.hidden_size, config.vocab_size)
        self.norm = Norm(config.hidden_size, config.norm_eps)
        layers = range(config.layers)
        self.attentions = nn.ModuleList([AttentionHalf(config, layer) for layer in layers])
        top = config.experts_per_token
        self.experts = nn.ModuleList([MoeHalf(config, config.experts, top) for _ in layers])
        self.drafter = Dspark(config) if config.drafting else None
        self.rates = rope.both(config, torch.device("cpu"))
        self.hashing = hashing(config, token_map(config, folder)) if config.engram else None

    def turns(self, num_T: int, device: torch.device) -> dict[int, Turn]:
        """By ratio: positions of rows, and of the compressed rows' first tokens."""
        found = {0: Turn(*turns(torch.arange(num_T, device=device), self.rates.plain_P.to(device)))}
        rate_P = self.rates.compressed_P.to(device)
        for ratio in set(self.config.ratios) - {0}:
            first = torch.arange(num_T // ratio, device=device) * ratio
            row = torch.arange(num_T, device=device)
            found[ratio] = Turn(*turns(row, rate_P), *turns(first, rate_P))
        return found

    def table_rows(self, ids_BT: Tensor) -> Tensor | None:
        if self.hashing is None:
            return None
        own = self.hashing
        moved = {name: value.to(ids_BT.device) for name, value in own._asdict().items()
                 if isinstance(value, Tensor)}  # fmt: skip
        self.hashing = own._replace(**moved)
        return engram_rows(self.config, self.hashing, ids_BT)

    def forward(self, ids_BT: Tensor) -> Ran:
        config = self.config
        turn = self.turns(ids_BT.shape[1], ids_BT.device)
        rows = self.table_rows(ids_BT)
        streams, pre = begin(config, self.embed(ids_BT).float())
        memory: Handed | None = None
        ranking: Tensor | float = 0.0
        loads, taps, memories = [], [], {}
        for layer, (attention, experts) in enumerate(
            zip(self.attentions, self.experts, strict=True)
        ):
            own = attention.engram
            row_BTC = None if own is None else rows[:, :, own.which]
            streams, pre, memory, found, tap = attention(
                streams, pre, turn[config.ratios[layer]], memory, row_BTC
            )
            streams, pre, load = experts(streams, pre)
            ranking = ranking if found is None else ranking + found
            loads.append(load)
            if config.drafting and layer in config.drafting.taps:
                taps.append(tap)
            if layer in config.index_sources:
                assert memory is not None
                memories[layer] = Memory(*memory)
        hidden = self.norm(collapse(streams, pre))
        return Ran(hidden, torch.cat(taps, -1) if taps else None, ranking, loads, memories)

    def blocks(
        self, ids_BT: Tensor, taps_BTE: Tensor, anchor_BA: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """`Dspark.hidden` of blocks whose pending tokens stand at the anchors."""
        assert self.drafter is not None
        own = self.drafter.own
        noise = ids_BT.new_full((anchor_BA.numel(), own.block), own.noise_id)
        noise[:, 0] = ids_BT.gather(1, anchor_BA).flatten()
        rate_P = self.rates.plain_P.to(ids_BT.device)
        return self.drafter.hidden(taps_BTE, self.embed(noise).float().detach(), anchor_BA, rate_P)


def start_weights(model: Model, generator: torch.Generator) -> None:
    """First weights: scaled normal matrices, half-layers' outputs small, streams told apart."""

    def normal(weight: Tensor, std: float) -> None:
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)

    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "norm" in name or name.endswith(("q_weight", "k_weight")):
                weight.fill_(1.0)
            elif name.endswith(("attn_sink", "confidence.weight")):
                weight.zero_()
            elif name.endswith("embed.weight"):
                normal(weight, 0.5)
            elif name.endswith("head.weight"):
                normal(weight, 0.5 / math.sqrt(weight.shape[-1]))
            elif name.endswith("hyper.fn"):
                normal(weight, 1 / math.sqrt(weight.shape[-1]))
            elif ".hyper." not in name:
                small = 0.3 if "wo_b" in name or name.endswith("w2") else 1.0
                normal(weight, small / math.sqrt(weight.shape[-1]))
        start_halves(model.config, model.attentions, model.experts)
        if model.drafter is not None:
            start_halves(model.config, model.drafter.stages, model.drafter.experts)


def start_halves(config: Config, attentions: nn.ModuleList, experts: nn.ModuleList) -> None:
    for index, halves in enumerate(zip(attentions, experts, strict=True)):
        for turn, half in enumerate(halves):
            start_streams(half.hyper, 2 * index + turn, config.streams)


def official_name(name: str, last: int) -> str:
    for pattern, put in OFFICIAL:
        name = re.sub(pattern, put.replace("{last}", str(last)), name)
    return re.sub(r"\.(w[123])$", r".\1.weight", name)


def official_tensors(model: Model) -> dict[str, Tensor]:
    """Every tensor under its official name; experts one by one."""
    out = {}
    last = model.config.drafting.stages - 1 if model.config.drafting else 0
    for name, value in model.state_dict().items():
        name = official_name(name, last)
        before, found, part = name.partition(".ffn.experts.")
        if found:
            for index, expert in enumerate(value):
                out[f"{before}.ffn.experts.{index}.{part}"] = expert
        else:
            out[name] = value
    return out
