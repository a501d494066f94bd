"""The sizes of a glm5_next text model, read from and written to the official config.json."""

from dataclasses import dataclass
from typing import Any

FOLLOWED = {
    "hidden_act": "silu",
    "mhc": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "qk_rope_head_dim": 0,
    "attention_bias": False,
    "index_kpool_always_select_tail": True,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes in numbers of channels, heads, experts or tokens."""

    vocab: int
    hidden: int
    linear: tuple[bool, ...]  # one a layer: KDA (true) or DSA
    dense: tuple[bool, ...]  # one a layer: dense MLP (true) or experts
    kda_heads: int
    kda_dim: int
    conv: int
    bound: float
    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    value: int
    index_heads: int
    index_dim: int
    index_topk: int
    pool: int
    inner: int
    experts: int
    experts_per_token: int
    expert_inner: int
    shared: int
    route_scale: float
    limit: float
    streams: int
    sinkhorn: int
    hc_eps: float
    eps: float


def read_shape(config: dict[str, Any]) -> Shape:
    """Read config.json's `text_config`; a value this trainer does not follow is a ValueError."""
    text = config["text_config"]
    for key, want in FOLLOWED.items():
        if text.get(key, want) != want:
            raise ValueError(f"{key} is {text[key]!r}; this trainer follows only {want!r}")
    kda = text["linear_attn_config"]
    return Shape(
        vocab=text["vocab_size"],
        hidden=text["hidden_size"],
        linear=tuple(kind == "linear_attention" for kind in text["layer_types"]),
        dense=tuple(kind == "dense" for kind in text["mlp_layer_types"]),
        kda_heads=kda["num_heads"],
        kda_dim=kda["head_dim"],
        conv=kda["short_conv_kernel_size"],
        bound=kda["gate_lower_bound"],
        heads=text["num_attention_heads"],
        q_rank=text["q_lora_rank"],
        kv_rank=text["kv_lora_rank"],
        nope=text["qk_nope_head_dim"],
        value=text["v_head_dim"],
        index_heads=text["index_n_heads"],
        index_dim=text["index_head_dim"],
        index_topk=text["index_topk"],
        pool=text["index_kpool"],
        inner=text["intermediate_size"],
        experts=text["n_routed_experts"],
        experts_per_token=text["num_experts_per_tok"],
        expert_inner=text["moe_intermediate_size"],
        shared=text["n_shared_experts"],
        route_scale=text["routed_scaling_factor"],
        limit=text["swiglu_limit"],
        streams=text["hc_mult"],
        sinkhorn=text["hc_sinkhorn_iters"],
        hc_eps=text["hc_eps"],
        eps=text["rms_norm_eps"],
    )


def tiny_config(*, vocab: int, context: int, eos: list[int], pad: int) -> dict[str, Any]:
    """config.json of the bundled model: `eos` and `pad` are ids of its own tokenizer."""
    linear = ["linear_attention", "deepseek_sparse_attention"] * 2
    text = {
        "model_type": "glm5_next_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "dtype": "bfloat16",
        "first_k_dense_replace": 1,
        "hc_eps": 1e-6,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "head_dim": 0,
        "hidden_act": "silu",
        "hidden_size": 256,
        "index_head_dim": 32,
        "index_kpool": 4,
        "index_kpool_always_select_tail": True,
        "index_kpool_compress": True,
        "index_n_heads": 8,
        "index_share_for_mtp_iteration": True,
        "index_topk": 256,
        "indexer_rope_interleave": True,
        "indexer_types": ["full"] * 4,
        "initializer_range": 0.02,
        "intermediate_size": 512,
        "kv_lora_rank": 64,
        "layer_types": linear,
        "linear_attn_config": {
            "full_attn_layers": [1, 3],
            "gate_lower_bound": -5.0,
            "head_dim": 64,
            "kda_layers": [0, 2],
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
        "max_position_embeddings": context,
        "mhc": True,
        "mla_use_nope": True,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "moe_intermediate_size": 48,
        "moe_router_dtype": "float32",
        "n_group": 1,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 128,
        "qk_head_dim": 64,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 0,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "swiglu_limit": 10.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "v_head_dim": 64,
        "vocab_size": vocab,
    }
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": "bfloat16",
        "eos_token_id": eos,
        "pad_token_id": pad,
        "tie_word_embeddings": False,
        "text_config": text,
    }
