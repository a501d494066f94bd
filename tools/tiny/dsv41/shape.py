"""config.json of the bundled deepseek_v41 model."""

from pathlib import Path
from typing import Any

from tensorfold.families.dsv41.primes import engram_primes
from tensorfold.families.dsv41.token_map import from_tokenizer

LAYERS, STAGES = 6, 3
ENGRAM_LAYERS, ORDERS, ENGRAM_HEADS, ENGRAM_START = (1, 3), 3, 2, 701


def tiny_config(
    *, vocab: int, context: int, begin: int, end: int, pad: int, noise: int, folder: Path
) -> dict[str, Any]:
    """Token ids are of the model's own tokenizer, which stands in `folder`."""
    primes = engram_primes(len(ENGRAM_LAYERS), ORDERS, ENGRAM_HEADS, ENGRAM_START)
    text = {
        "model_type": "deepseek_v41_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "candidate_block_size": 8,
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 32,
        "compress_ratios": [0, 2, 2, 1, 1, 1, *[0] * STAGES],
        "compress_rope_theta": 160000,
        "dspark_block_size": 5,
        "dspark_markov_rank": 32,
        "dspark_n_routed_experts": 8,
        "dspark_noise_token_id": noise,
        "dspark_num_experts_per_tok": 3,
        "dspark_target_layer_ids": [3, 4, 5],
        "dtype": "bfloat16",
        "engram_compressed_vocab_size": max(from_tokenizer(folder / "tokenizer.json")) + 1,
        "engram_head_dim": 16,
        "engram_layer_ids": list(ENGRAM_LAYERS),
        "engram_max_ngram_size": ORDERS + 1,
        "engram_n_heads": ENGRAM_HEADS,
        "engram_num_embeddings": [sum(map(sum, layer)) for layer in primes],
        "engram_pad_token_id": pad,
        "engram_vocab_size": ENGRAM_START,
        "hc_eps": 1e-6,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 192,
        "index_head_dim": 32,
        "index_n_heads": 8,
        "index_source_layer_ids": [1, 3, 4],
        "index_topk": 128,
        "initializer_range": 0.02,
        "kv_source_layer_ids": [1, 3],
        "max_position_embeddings": context,
        "moe_intermediate_size": 32,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 8,
        "num_experts_per_tok": 4,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": STAGES,
        "o_groups": 4,
        "o_lora_rank": 48,
        "q_lora_rank": 96,
        "qk_rope_head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": context // 4,
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "sliding_window": 128,
        "swiglu_limit": 10.0,
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "vocab_size": vocab,
    }
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": begin,
        "eos_token_id": end,
        "pad_token_id": pad,
        "tie_word_embeddings": False,
        "text_config": text,
    }
