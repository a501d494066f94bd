"""The sizes of the two released models, with as many layers as asked: configs for the benches."""

from __future__ import annotations

from typing import Any

from tensorfold.families.dsv41.primes import engram_primes

# Rows of the released Engram tables, by layer.
ENGRAM_ROWS = {1: 384006168, 14: 384016682}


def glm53(layers: int = 45, *, dense: int = 3, mtp: int = 0) -> dict[str, Any]:
    """GLM-5.3-Flash's text part (spec glm53, 1): three KDA layers, then a DSA layer, repeated;
    the first `dense` layers have a dense MLP."""
    kinds = [
        "deepseek_sparse_attention" if layer % 4 == 3 else "linear_attention"
        for layer in range(layers)
    ]
    text = {
        "model_type": "glm5_next_text",
        "vocab_size": 154880,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": mtp,
        "layer_types": kinds,
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(layers)],
        "linear_attn_config": {
            "num_heads": 64,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "kda_layers": [n for n, kind in enumerate(kinds) if kind == "linear_attention"],
            "full_attn_layers": [n for n, kind in enumerate(kinds) if kind != "linear_attention"],
        },
        "max_position_embeddings": 1 << 20,
        "rms_norm_eps": 1e-5,
        "swiglu_limit": 10.0,
        "eos_token_id": [154820, 154827, 154829],
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "index_kpool": 4,
        "index_kpool_compress": True,
        "index_kpool_always_select_tail": True,
        "n_routed_experts": 288,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
    }
    return {"model_type": "glm5_next", "tie_word_embeddings": False, "text_config": text}


def dsv41(layers: int = 40, *, engram: int = 0) -> dict[str, Any]:
    """DeepSeek-V4.1-Flash's text part (spec dsv41, 1.1) without draft stages.

    The tables of its Engram layers have about 24 x `engram` rows; at 0 there are no such layers.
    With fewer than 20 layers: two with the window alone, then half of them at ratio 2 and half at
    ratio 1, each kind with a source of its own.
    """
    assert layers >= 4, layers
    pairs = min(18, (layers - 2) // 2)
    first_single = 2 + pairs
    whole = layers == 40
    text = {
        "model_type": "deepseek_v41_text",
        "vocab_size": 129280,
        "hidden_size": 5120,
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1280,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "sliding_window": 128,
        "compress_ratios": [0, 0] + [2] * pairs + [1] * (layers - first_single),
        "kv_source_layer_ids": [2, 8, 14, 20] if whole else [2, first_single],
        "index_source_layer_ids": ([2, 8, 14, 20, 24, 28, 32, 36] if whole else [2, first_single]),
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "candidate_source_layer_id": first_single,
        "candidate_topk_blocks": 2048,
        "candidate_block_size": 8,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "max_position_embeddings": 1 << 20,
        "rms_norm_eps": 1e-20,
        "swiglu_limit": 10.0,
        "moe_intermediate_size": 2304,
        "n_routed_experts": 384,
        "num_experts_per_tok": 6,
        "n_shared_experts": 1,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "eos_token_id": 1,
        "image_token_id": 129264,
    }
    if engram:
        text |= engram_of(layers, engram, heads=8, size=256, words=99092)
    return {"model_type": "deepseek_v41", "tie_word_embeddings": False, "text_config": text}


def engram_of(layers: int, start: int, *, heads: int, size: int, words: int) -> dict[str, Any]:
    """Engram layers whose columns have a prime of rows each, the smallest ones from `start` on."""
    ids = [layer for layer in ENGRAM_ROWS if layer < layers]
    grams = 4
    primes = engram_primes(len(ids), grams - 1, heads, start)
    return {
        "engram_layer_ids": ids,
        "engram_num_embeddings": [sum(map(sum, layer)) for layer in primes],
        "engram_max_ngram_size": grams,
        "engram_n_heads": heads,
        "engram_head_dim": size,
        "engram_vocab_size": start,
        "engram_compressed_vocab_size": words,
        "engram_pad_token_id": 2,
    }


def tiny_glm53(layers: int) -> dict[str, Any]:
    """The same kinds of layers at sizes for tests."""
    raw = glm53(layers, dense=1)
    text = raw["text_config"]
    text |= {
        "vocab_size": 4096,
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "eos_token_id": [0],
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 24,
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 16,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
    }
    text["linear_attn_config"] |= {"num_heads": 4, "head_dim": 16}
    return raw


def tiny_dsv41(layers: int, *, engram: int = 0) -> dict[str, Any]:
    """The same kinds of layers at sizes for tests."""
    raw = dsv41(layers)
    if engram:
        raw["text_config"] |= engram_of(layers, engram, heads=2, size=32, words=100)
    raw["text_config"] |= {
        "vocab_size": 160,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "head_dim": 64,
        "qk_rope_head_dim": 32,
        "q_lora_rank": 64,
        "o_groups": 2,
        "o_lora_rank": 32,
        "sliding_window": 8,
        "index_n_heads": 16,
        "index_head_dim": 64,
        "index_topk": 4,
        "candidate_topk_blocks": 3,
        "candidate_block_size": 2,
        "moe_intermediate_size": 64,
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "image_token_id": 159,
    }
    return raw
