"""The checkpoint's tensors (spec glm53, section 4) and the forms the layers use them in.

Products that share an input are joined into one weight; products whose inner dimension ranks may
cut are split into `linear_parts`' parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core.ops.linear_parts import split
from tensorfold.families.common.stacking import stacked
from tensorfold.families.glm53.config import Config
from tensorfold.families.glm53.names import PREFIX

Take = Callable[[str], Tensor]


class Hyper(NamedTuple):
    """One sublayer's hyper-connection: fn [2N + NN, N * D], base, scale [3]; and its norm [D]."""

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


class Kda(NamedTuple):
    """in_proj rows: q, k, v, forget down, output-gate down, beta; taps over q, k, v channels.

    q_scale_K and k_scale_K turn an RMS norm into the L2 norm; q's also scales the score.
    """

    in_proj: Tensor
    taps_CT: Tensor
    q_scale_K: Tensor
    k_scale_K: Tensor
    gates_2KC: Tensor
    dt_bias: Tensor
    rate_H1: Tensor
    out_norm: Tensor
    o_proj: Tensor


class Dsa(NamedTuple):
    """in_proj rows: q down, kv down, index key, index gate, index head weights (which carry the
    score's positive scale). q_b and index_q both read the query's normed latent."""

    in_proj: Tensor
    q_norm: Tensor
    kv_norm: Tensor
    q_b: Tensor
    index_q: Tensor
    key_HNC: Tensor
    value_HCV: Tensor
    k_norm: Tensor
    k_norm_bias: Tensor
    ape_MD: Tensor
    o_proj: Tensor


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


class Layer(NamedTuple):
    attention_hyper: Hyper
    attention: Kda | Dsa
    mlp_hyper: Hyper
    mlp: Mlp | Moe


class Draft(NamedTuple):
    """The MTP layer: plain residuals, its own norms."""

    eh_proj: Tensor
    embed_norm: Tensor
    hidden_norm: Tensor
    input_norm: Tensor
    attention: Dsa
    post_norm: Tensor
    mlp: Moe
    out_norm: Tensor


class Weights(NamedTuple):
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    draft: Draft | None


def hyper(take: Take, which: str, norm: str) -> Hyper:
    return Hyper(
        fn=take(f"hc_{which}_fn"),
        base=take(f"hc_{which}_base"),
        scale=take(f"hc_{which}_scale"),
        norm=take(norm),
    )


def kda(config: Config, take: Take) -> Kda:
    joined = [take(f"self_attn.{name}_proj.weight") for name in ("q", "k", "v", "f_a", "g_a", "b")]
    taps = [take(f"self_attn.{name}_conv1d.weight")[:, 0] for name in ("q", "k", "v")]
    gates = [take(f"self_attn.{name}_b_proj.weight").T for name in ("f", "g")]
    out_norm = take("self_attn.o_norm.weight")
    return Kda(
        in_proj=torch.cat(joined),
        taps_CT=torch.cat(taps),
        q_scale_K=torch.full_like(out_norm, 1 / config.kda_size),
        k_scale_K=torch.full_like(out_norm, config.kda_size**-0.5),
        gates_2KC=torch.stack(gates).contiguous(),
        dt_bias=take("self_attn.dt_bias"),
        rate_H1=take("self_attn.A_log").exp()[:, None],
        out_norm=out_norm,
        o_proj=split(take("self_attn.o_proj.weight"), config.held.kda),
    )


def dsa(config: Config, take: Take) -> Dsa:
    # relu commutes with a positive scale, so both of the score's scales go into the head weights.
    scale = config.index_heads**-0.5 * config.index_size**-0.5
    index = "self_attn.indexer."
    joined = [
        take("self_attn.q_a_proj.weight"),
        take("self_attn.kv_a_proj_with_mqa.weight"),
        take(index + "wk.weight"),
        take(index + "index_kpool_compress_gate"),
        take(index + "weights_proj.weight") * scale,
    ]
    kv_b = take("self_attn.kv_b_proj.weight")
    kv_b = kv_b.view(config.heads, config.nope + config.v_size, config.kv_rank)
    return Dsa(
        in_proj=torch.cat(joined),
        q_norm=take("self_attn.q_a_layernorm.weight"),
        kv_norm=take("self_attn.kv_a_layernorm.weight"),
        q_b=take("self_attn.q_b_proj.weight"),
        index_q=take(index + "wq_b.weight"),
        key_HNC=kv_b[:, : config.nope].contiguous(),
        value_HCV=kv_b[:, config.nope :].transpose(1, 2).contiguous(),
        k_norm=take(index + "k_norm.weight"),
        k_norm_bias=take(index + "k_norm.bias"),
        ape_MD=take(index + "index_kpool_compress_ape"),
        o_proj=split(take("self_attn.o_proj.weight"), config.held.dsa),
    )


def mlp(take: Take, where: str, parts: int) -> Mlp:
    gate_up = [take(f"{where}.gate_proj.weight"), take(f"{where}.up_proj.weight")]
    return Mlp(gate_up=torch.cat(gate_up), down=split(take(f"{where}.down_proj.weight"), parts))


def moe(config: Config, take: Take) -> Moe:
    def gate_up(expert: int) -> Tensor:
        where = f"mlp.experts.{expert}"
        return torch.cat([take(f"{where}.gate_proj.weight"), take(f"{where}.up_proj.weight")]).T

    def down(expert: int) -> Tensor:
        return take(f"mlp.experts.{expert}.down_proj.weight").T

    held = config.held
    experts = range(held.first, held.first + held.experts)
    return Moe(
        router=take("mlp.gate.weight"),
        bias=take("mlp.gate.e_score_correction_bias"),
        gate_up_EDI=stacked(experts, gate_up),
        down_EID=stacked(experts, down),
        first=held.first,
        parts=held.ranges,
        shared=mlp(take, "mlp.shared_experts", held.shared),
    )


def layer(config: Config, index: int, tensors: Mapping[str, Tensor]) -> Layer:
    def take(name: str) -> Tensor:
        return tensors[f"{PREFIX}layers.{index}.{name}"]

    return Layer(
        attention_hyper=hyper(take, "attn", "input_layernorm.weight"),
        attention=kda(config, take) if config.linear[index] else dsa(config, take),
        mlp_hyper=hyper(take, "ffn", "post_attention_layernorm.weight"),
        mlp=mlp(take, "mlp", config.held.dense) if config.dense[index] else moe(config, take),
    )


def draft(config: Config, tensors: Mapping[str, Tensor]) -> Draft | None:
    if not config.mtp_layers:
        return None

    def take(name: str) -> Tensor:
        return tensors[f"{PREFIX}layers.{config.layers}.{name}"]

    return Draft(
        eh_proj=take("eh_proj.weight"),
        embed_norm=take("enorm.weight"),
        hidden_norm=take("hnorm.weight"),
        input_norm=take("input_layernorm.weight"),
        attention=dsa(config, take),
        post_norm=take("post_attention_layernorm.weight"),
        mlp=moe(config, take),
        out_norm=take("shared_head.norm.weight"),
    )


def assemble(config: Config, tensors: Mapping[str, Tensor]) -> Weights:
    """All weights of the text model, from tensors under the checkpoint's names."""
    return Weights(
        embed=tensors[PREFIX + "embed_tokens.weight"],
        layers=tuple(layer(config, index, tensors) for index in range(config.layers)),
        norm=tensors[PREFIX + "norm.weight"],
        head=tensors["lm_head.weight"],
        draft=draft(config, tensors),
    )
