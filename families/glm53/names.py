"""Names and shapes of a checkpoint's text tensors (spec glm53, section 4), and how ranks cut them.

Heads are cut with all that is theirs, an MLP by its inner width, the vocabulary of the head, and
routed experts by ranges of ids or by their inner width; what is small or shared by all heads is on
every rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorfold.core.family_api import CutProduct, TensorSpec
from tensorfold.core.share import WIDTH, units
from tensorfold.families.glm53.config import Config

PREFIX = "model.language_model."
VISION = "model.visual."
# Held in float32 in an engine of any format (spec glm53, 2.8): the hyper-connections' coefficients,
# the recurrence's taps, gates and norm, and what chooses experts.
WIDE = (
    *(f"hc_{which}_{part}" for which in ("attn", "ffn") for part in ("fn", "base", "scale")),
    *(f"self_attn.{name}_conv1d.weight" for name in ("q", "k", "v")),
    "self_attn.A_log",
    "self_attn.dt_bias",
    "self_attn.o_norm.weight",
    "mlp.gate.weight",
    "mlp.gate.e_score_correction_bias",
)


def plain(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape)


def rows(name: str, *shape: int, count: int) -> TensorSpec:
    """A tensor whose first axis is cut as `count` is."""
    return TensorSpec(name, shape, axis=0, units=units(count))


def columns(name: str, *shape: int, count: int) -> TensorSpec:
    return TensorSpec(name, shape, axis=1, units=units(count))


def hyper(config: Config) -> Iterator[TensorSpec]:
    n = config.streams
    for which in ("attn", "ffn"):
        yield plain(f"hc_{which}_fn", 2 * n + n * n, n * config.hidden_size)
        yield plain(f"hc_{which}_base", 2 * n + n * n)
        yield plain(f"hc_{which}_scale", 3)


def kda(config: Config) -> Iterator[TensorSpec]:
    d, heads, size = config.hidden_size, config.kda_heads, config.kda_size
    inner = heads * size
    for name in ("q", "k", "v"):
        yield rows(f"self_attn.{name}_proj.weight", inner, d, count=heads)
        yield rows(f"self_attn.{name}_conv1d.weight", inner, 1, config.conv, count=heads)
    for name in ("f", "g"):
        yield plain(f"self_attn.{name}_a_proj.weight", size, d)
        yield rows(f"self_attn.{name}_b_proj.weight", inner, size, count=heads)
    yield rows("self_attn.b_proj.weight", heads, d, count=heads)
    yield rows("self_attn.A_log", heads, count=heads)
    yield rows("self_attn.dt_bias", inner, count=heads)
    yield plain("self_attn.o_norm.weight", size)
    yield columns("self_attn.o_proj.weight", d, inner, count=heads)


def dsa(config: Config) -> Iterator[TensorSpec]:
    d, rank, heads = config.hidden_size, config.kv_rank, config.heads
    size, per_head = config.index_size, config.nope + config.v_size
    yield plain("self_attn.q_a_proj.weight", config.q_rank, d)
    yield plain("self_attn.q_a_layernorm.weight", config.q_rank)
    yield rows("self_attn.q_b_proj.weight", heads * config.nope, config.q_rank, count=heads)
    yield plain("self_attn.kv_a_proj_with_mqa.weight", rank, d)
    yield plain("self_attn.kv_a_layernorm.weight", rank)
    yield rows("self_attn.kv_b_proj.weight", heads * per_head, rank, count=heads)
    yield columns("self_attn.o_proj.weight", d, heads * config.v_size, count=heads)
    yield plain("self_attn.indexer.wq_b.weight", config.index_heads * size, config.q_rank)
    yield plain("self_attn.indexer.wk.weight", size, d)
    yield plain("self_attn.indexer.weights_proj.weight", config.index_heads, d)
    yield plain("self_attn.indexer.k_norm.weight", size)
    yield plain("self_attn.indexer.k_norm.bias", size)
    yield plain("self_attn.indexer.index_kpool_compress_ape", config.pool, size)
    yield plain("self_attn.indexer.index_kpool_compress_gate", size, d)


def gated(where: str, d: int, inner: int) -> Iterator[TensorSpec]:
    yield rows(f"{where}.gate_proj.weight", inner, d, count=inner)
    yield rows(f"{where}.up_proj.weight", inner, d, count=inner)
    yield columns(f"{where}.down_proj.weight", d, inner, count=inner)


def moe(config: Config) -> Iterator[TensorSpec]:
    d, experts = config.hidden_size, config.experts
    yield plain("mlp.gate.weight", experts, d)
    yield plain("mlp.gate.e_score_correction_bias", experts)
    count = units(experts)
    for expert in range(experts):
        own = gated(f"mlp.experts.{expert}", d, config.expert_size)
        if config.expert_cut == WIDTH:
            yield from own
            continue
        for spec in own:
            unit = expert * count // experts
            yield TensorSpec(spec.name, spec.shape, units=count, unit=unit)
    yield from gated("mlp.shared_experts", d, config.expert_size * config.shared_experts)


def norms(config: Config) -> Iterator[TensorSpec]:
    yield plain("input_layernorm.weight", config.hidden_size)
    yield plain("post_attention_layernorm.weight", config.hidden_size)


def layer(config: Config, index: int) -> Iterator[TensorSpec]:
    yield from norms(config)
    yield from hyper(config)
    yield from kda(config) if config.linear[index] else dsa(config)
    if config.dense[index]:
        yield from gated("mlp", config.hidden_size, config.intermediate_size)
    else:
        yield from moe(config)


def draft(config: Config) -> Iterator[TensorSpec]:
    d = config.hidden_size
    yield plain("eh_proj.weight", d, 2 * d)
    yield plain("enorm.weight", d)
    yield plain("hnorm.weight", d)
    yield plain("shared_head.norm.weight", d)
    yield from norms(config)
    yield from dsa(config)
    yield from moe(config)


def cut_products(config: Config) -> tuple[CutProduct, ...]:
    d, size = config.hidden_size, config.kda_size
    heads, kda_heads = units(config.heads), units(config.kda_heads)
    inner = config.kda_heads * size
    widths = {config.intermediate_size, config.expert_size * config.shared_experts}
    own = ((inner, kda_heads),) * 3
    return (
        CutProduct("linear", d, (*own, (2 * size, 1), (config.kda_heads, kda_heads))),
        CutProduct("linear_heads", size, ((inner, kda_heads),), heads=2),
        CutProduct("linear", config.q_rank, ((config.heads * config.nope, heads),)),
        CutProduct("linear", d, ((config.vocab_size, units(config.vocab_size)),)),
        *(CutProduct("linear", d, ((width, units(width)),) * 2) for width in sorted(widths)),
    )


def tensors(config: Config) -> tuple[TensorSpec, ...]:
    """Every text tensor, the MTP layer's included (it is stored as layer `layers`)."""
    d, vocab = config.hidden_size, config.vocab_size
    found = [
        plain(PREFIX + "embed_tokens.weight", vocab, d),
        plain(PREFIX + "norm.weight", d),
        rows("lm_head.weight", vocab, d, count=vocab),
    ]
    for index in range(config.layers + config.mtp_layers):
        own = layer(config, index) if index < config.layers else draft(config)
        where = f"{PREFIX}layers.{index}."
        found += [spec._replace(name=where + spec.name) for spec in own]
    return tuple(
        spec._replace(dtype="float32" if spec.name.endswith(WIDE) else "") for spec in found
    )
