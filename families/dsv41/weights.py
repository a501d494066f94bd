"""The checkpoint's tensors (spec dsv41, section 4) and the forms the layers use them in.

Products that share an input are joined into one weight; products whose inner dimension ranks may
cut are split into `linear_parts`' parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.ops.linear_parts import split
from tensorfold.families.common.stacking import stacked
from tensorfold.families.dsv41.config import Config, Run
from tensorfold.families.dsv41.engram import Hashing, Table, hashing
from tensorfold.families.dsv41.token_map import token_map

Take = Callable[[str], Tensor]


class Hyper(NamedTuple):
    """One sublayer's hyper-connection: fn [2N + NN, N * D], base, scale [3]; and its norm [D]."""

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


class Compressor(NamedTuple):
    """proj rows: the values, then at ratio 2 the gates. index_proj makes a row's index key."""

    proj: Tensor
    norm: Tensor
    index_proj: Tensor
    index_norm: Tensor


class Index(NamedTuple):
    """The query's product, and the head weights, which carry the score's positive scale."""

    q: Tensor
    heads: Tensor


class Attention(NamedTuple):
    """in_proj rows: q down, window row. o_down_GKN is a product a group of heads."""

    in_proj: Tensor
    q_norm: Tensor
    kv_norm: Tensor
    q_up: Tensor
    sink_H: Tensor
    o_down_GKN: Tensor
    o_up: Tensor
    compressor: Compressor | None
    indexer: Index | None


class Mlp(NamedTuple):
    gate_up: Tensor
    down: Tensor


class Moe(NamedTuple):
    """The experts from id `first` on, or this rank's part of each one's inner width, in `parts`
    ranges that are summed apart."""

    router: Tensor
    bias: Tensor
    gate_up_EDI: Tensor
    down_EID: Tensor
    first: int
    parts: int
    shared: Mlp


class Engram(NamedTuple):
    """table stays on the host; proj rows: a key for each stream, then the value."""

    table: Table
    proj: Tensor
    weight_ND: Tensor


class Layer(NamedTuple):
    engram: Engram | None
    attention_hyper: Hyper
    attention: Attention
    moe_hyper: Hyper
    moe: Moe


class Drafter(NamedTuple):
    """The DSpark stages; main_proj takes the joined taps, confidence a row and its token."""

    main_proj: Tensor
    main_norm: Tensor
    stages: tuple[Layer, ...]
    norm: Tensor
    markov_embed: Tensor
    markov_head: Tensor
    confidence: Tensor


class Weights(NamedTuple):
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    hashing: Hashing | None
    drafter: Drafter | None


def hyper(take: Take, which: str) -> Hyper:
    return Hyper(
        fn=take(f"hc_{which}_fn"),
        base=take(f"hc_{which}_base"),
        scale=take(f"hc_{which}_scale"),
        norm=take(f"{which}_norm.weight"),
    )


def compressor(config: Config, take: Take, layer: int | None) -> Compressor | None:
    if layer is None or layer not in config.kv_sources:
        return None
    joined = [take("attn.compressor.wkv.weight")]
    if config.ratios[layer] > 1:
        joined.append(take("attn.compressor.wgate.weight"))
    return Compressor(
        proj=torch.cat(joined),
        norm=take("attn.compressor.norm.weight"),
        index_proj=take("attn.indexer.wk.weight"),
        index_norm=take("attn.indexer.k_norm.weight"),
    )


def index(config: Config, take: Take, layer: int | None) -> Index | None:
    if layer is None or layer not in config.index_sources:
        return None
    # relu commutes with a positive scale, so both of the score's scales go into the head weights.
    scale = config.index_heads**-0.5 * config.index_size**-0.5
    return Index(
        q=take("attn.indexer.wq_b.weight"),
        heads=take("attn.indexer.weights_proj.weight") * scale,
    )


def attention(config: Config, take: Take, layer: int | None) -> Attention:
    down = take("attn.wo_a.weight").view(config.groups, config.o_rank, -1)
    return Attention(
        in_proj=torch.cat([take("attn.wq_a.weight"), take("attn.wkv.weight")]),
        q_norm=take("attn.q_norm.weight"),
        kv_norm=take("attn.kv_norm.weight"),
        q_up=take("attn.wq_b.weight"),
        sink_H=take("attn.attn_sink"),
        o_down_GKN=down.transpose(1, 2).contiguous(),
        o_up=split(take("attn.wo_b.weight"), config.held.output),
        compressor=compressor(config, take, layer),
        indexer=index(config, take, layer),
    )


def moe(config: Config, take: Take, run: Run) -> Moe:
    def gate_up(expert: int) -> Tensor:
        where = f"ffn.experts.{expert}"
        return torch.cat([take(f"{where}.w1.weight"), take(f"{where}.w3.weight")]).T

    def down(expert: int) -> Tensor:
        return take(f"ffn.experts.{expert}.w2.weight").T

    experts = range(run.first, run.first + run.experts)
    shared = [take("ffn.shared_experts.w1.weight"), take("ffn.shared_experts.w3.weight")]
    return Moe(
        router=take("ffn.gate.weight"),
        bias=take("ffn.gate.bias"),
        gate_up_EDI=stacked(experts, gate_up),
        down_EID=stacked(experts, down),
        first=run.first,
        parts=run.ranges,
        shared=Mlp(
            torch.cat(shared), split(take("ffn.shared_experts.w2.weight"), config.held.shared)
        ),
    )


def engram(config: Config, take: Take, layer: int) -> Engram | None:
    if not config.engram or layer not in config.engram.layers:
        return None
    scale = take("engram.embed.scale") if config.quantised else None
    return Engram(
        table=Table(take("engram.embed.weight"), scale),
        proj=take("engram.wkv.weight"),
        weight_ND=take("engram.q_weight") * take("engram.k_weight"),
    )


def block(config: Config, tensors: Mapping[str, Tensor], where: str, layer: int | None) -> Layer:
    """A layer, or a draft stage where `layer` is none."""

    def take(name: str) -> Tensor:
        return tensors[f"{where}.{name}"]

    run = config.held.draft_experts if layer is None else config.held.experts
    return Layer(
        engram=None if layer is None else engram(config, take, layer),
        attention_hyper=hyper(take, "attn"),
        attention=attention(config, take, layer),
        moe_hyper=hyper(take, "ffn"),
        moe=moe(config, take, run),
    )


def drafter(config: Config, tensors: Mapping[str, Tensor]) -> Drafter | None:
    if config.drafting is None:
        return None
    last = f"mtp.{config.drafting.stages - 1}."
    return Drafter(
        main_proj=tensors["mtp.0.main_proj.weight"],
        main_norm=tensors["mtp.0.main_norm.weight"],
        stages=tuple(
            block(config, tensors, f"mtp.{stage}", None) for stage in range(config.drafting.stages)
        ),
        norm=tensors[last + "norm.weight"],
        markov_embed=tensors[last + "markov_head.embed.weight"],
        markov_head=tensors[last + "markov_head.head.weight"],
        confidence=tensors[last + "confidence_head.proj.weight"],
    )


def assemble(config: Config, tensors: Mapping[str, Tensor], folder: Path) -> Weights:
    """All weights of the text model, from tensors under the checkpoint's names."""
    embed = tensors["embed.weight"]
    hashed = hashing(config, token_map(config, folder).to(embed.device)) if config.engram else None
    return Weights(
        embed=embed,
        layers=tuple(
            block(config, tensors, f"layers.{layer}", layer) for layer in range(config.layers)
        ),
        norm=tensors["norm.weight"],
        head=tensors["head.weight"],
        hashing=hashed,
        drafter=drafter(config, tensors),
    )
