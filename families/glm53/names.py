"""Names and shapes of a checkpoint's text tensors (spec glm53, section 4)."""

from __future__ import annotations

from tensorfold.core.family_api import TensorSpec
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


def hyper(config: Config) -> dict[str, tuple[int, ...]]:
    n = config.streams
    found: dict[str, tuple[int, ...]] = {}
    for which in ("attn", "ffn"):
        found[f"hc_{which}_fn"] = (2 * n + n * n, n * config.hidden_size)
        found[f"hc_{which}_base"] = (2 * n + n * n,)
        found[f"hc_{which}_scale"] = (3,)
    return found


def kda(config: Config) -> dict[str, tuple[int, ...]]:
    d, heads, size = config.hidden_size, config.kda_heads, config.kda_size
    inner = heads * size
    found: dict[str, tuple[int, ...]] = {}
    for name in ("q", "k", "v"):
        found[f"{name}_proj.weight"] = (inner, d)
        found[f"{name}_conv1d.weight"] = (inner, 1, config.conv)
    for name in ("f", "g"):
        found[f"{name}_a_proj.weight"] = (size, d)
        found[f"{name}_b_proj.weight"] = (inner, size)
    found["b_proj.weight"] = (heads, d)
    found["A_log"] = (heads,)
    found["dt_bias"] = (inner,)
    found["o_norm.weight"] = (size,)
    found["o_proj.weight"] = (d, inner)
    return {f"self_attn.{name}": shape for name, shape in found.items()}


def dsa(config: Config) -> dict[str, tuple[int, ...]]:
    d, rank, heads = config.hidden_size, config.kv_rank, config.heads
    size = config.index_size
    return {
        "self_attn.q_a_proj.weight": (config.q_rank, d),
        "self_attn.q_a_layernorm.weight": (config.q_rank,),
        "self_attn.q_b_proj.weight": (heads * config.nope, config.q_rank),
        "self_attn.kv_a_proj_with_mqa.weight": (rank, d),
        "self_attn.kv_a_layernorm.weight": (rank,),
        "self_attn.kv_b_proj.weight": (heads * (config.nope + config.v_size), rank),
        "self_attn.o_proj.weight": (d, heads * config.v_size),
        "self_attn.indexer.wq_b.weight": (config.index_heads * size, config.q_rank),
        "self_attn.indexer.wk.weight": (size, d),
        "self_attn.indexer.weights_proj.weight": (config.index_heads, d),
        "self_attn.indexer.k_norm.weight": (size,),
        "self_attn.indexer.k_norm.bias": (size,),
        "self_attn.indexer.index_kpool_compress_ape": (config.pool, size),
        "self_attn.indexer.index_kpool_compress_gate": (size, d),
    }


def gated(where: str, d: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{where}.gate_proj.weight": (inner, d),
        f"{where}.up_proj.weight": (inner, d),
        f"{where}.down_proj.weight": (d, inner),
    }


def moe(config: Config) -> dict[str, tuple[int, ...]]:
    d = config.hidden_size
    found: dict[str, tuple[int, ...]] = {
        "mlp.gate.weight": (config.experts, d),
        "mlp.gate.e_score_correction_bias": (config.experts,),
    }
    for expert in range(config.experts):
        found |= gated(f"mlp.experts.{expert}", d, config.expert_size)
    return found | gated("mlp.shared_experts", d, config.expert_size * config.shared_experts)


def norms(config: Config) -> dict[str, tuple[int, ...]]:
    size = (config.hidden_size,)
    return {"input_layernorm.weight": size, "post_attention_layernorm.weight": size}


def layer(config: Config, index: int) -> dict[str, tuple[int, ...]]:
    attention = kda(config) if config.linear[index] else dsa(config)
    dense = gated("mlp", config.hidden_size, config.intermediate_size)
    mlp = dense if config.dense[index] else moe(config)
    return norms(config) | hyper(config) | attention | mlp


def draft(config: Config) -> dict[str, tuple[int, ...]]:
    d = config.hidden_size
    own = {
        "eh_proj.weight": (d, 2 * d),
        "enorm.weight": (d,),
        "hnorm.weight": (d,),
        "shared_head.norm.weight": (d,),
    }
    return own | norms(config) | dsa(config) | moe(config)


def tensors(config: Config) -> tuple[TensorSpec, ...]:
    """Every text tensor, the MTP layer's included (it is stored as layer `layers`)."""
    d, vocab = config.hidden_size, config.vocab_size
    found: dict[str, tuple[int, ...]] = {
        PREFIX + "embed_tokens.weight": (vocab, d),
        PREFIX + "norm.weight": (d,),
        "lm_head.weight": (vocab, d),
    }
    for index in range(config.layers + config.mtp_layers):
        own = layer(config, index) if index < config.layers else draft(config)
        found |= {f"{PREFIX}layers.{index}.{name}": shape for name, shape in own.items()}
    return tuple(
        TensorSpec(name, shape, dtype="float32" if name.endswith(WIDE) else "")
        for name, shape in found.items()
    )
