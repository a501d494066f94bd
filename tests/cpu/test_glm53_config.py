"""What the family cannot run is refused by key and value, before a tensor is read."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from tensorfold.core.errors import StartError
from tensorfold.families.glm53.config import Config, read
from tests.cpu.driving import CKPT


def raw() -> dict[str, Any]:
    return json.loads((CKPT / "config.json").read_text())


def changed(key: str, value: Any) -> dict[str, Any]:
    """The golden model's config with one key of the text part, "outer.inner" for a nested one."""
    config = copy.deepcopy(raw())
    *outer, last = key.split(".")
    where = config["text_config"]
    for name in outer:
        where = where[name]
    where[last] = value
    return config


def test_the_golden_models_config_is_read() -> None:
    config = read(raw())
    assert isinstance(config, Config)
    assert (config.layers, config.pool, config.index_top, config.gate_bound) == (6, 4, 4, -5.0)
    assert config.linear == (True, False, True, True, True, False)
    assert config.end_ids == (0,)


def test_a_text_config_at_the_top_is_read_the_same() -> None:
    assert read(raw()["text_config"]) == read(raw())


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama", ["glm5_next_text"], None),
    "attention_bias": (True, None),
    "qk_rope_head_dim": (64,),
    "mla_use_nope": (False,),
    "tie_word_embeddings": (True,),
    "hidden_act": ("gelu", None),
    "scoring_func": ("softmax",),
    "topk_method": ("greedy",),
    "n_group": (2,),
    "topk_group": (4,),
    "index_kpool_compress": (False,),
    "index_kpool_always_select_tail": (False,),
    "mhc": (False,),
    "rope_parameters": ({"rope_theta": 10000.0},),
    "rope_scaling": ({"type": "yarn"},),
    "quantization_config": ({"quant_method": "fp8"},),
    "num_key_value_heads": (2, 8),
    "qk_head_dim": (64,),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in UNSUPPORTED.items() for value in values]
)
def test_an_unsupported_value_is_refused_by_key_and_value(key: str, value: Any) -> None:
    with pytest.raises(StartError) as refusal:
        read(changed(key, value))
    assert f"config.json: text_config.{key} is {value!r}: only " in str(refusal.value)
    assert str(refusal.value).endswith("is supported")


@pytest.mark.parametrize("key", ["tie_word_embeddings", "quantization_config"])
def test_an_unsupported_value_at_the_top_is_refused(key: str) -> None:
    with pytest.raises(StartError, match=f"config.json: {key} is True: only"):
        read(raw() | {key: True})


SIZES = (
    "num_hidden_layers hidden_size vocab_size intermediate_size max_position_embeddings"
    " num_attention_heads q_lora_rank kv_lora_rank qk_nope_head_dim v_head_dim index_n_heads"
    " index_head_dim index_kpool index_topk n_routed_experts num_experts_per_tok n_shared_experts"
    " moe_intermediate_size hc_mult hc_sinkhorn_iters linear_attn_config.num_heads"
    " linear_attn_config.head_dim linear_attn_config.short_conv_kernel_size"
).split()
NUMBERS = (
    "rms_norm_eps swiglu_limit routed_scaling_factor hc_eps linear_attn_config.gate_lower_bound"
).split()


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "4", None])
def test_a_size_that_is_no_positive_whole_number_is_refused(key: str, value: Any) -> None:
    with pytest.raises(StartError) as refusal:
        read(changed(key, value))
    assert f"config.json: text_config.{key} is {value!r}: " in str(refusal.value)


@pytest.mark.parametrize("key", [*SIZES, *NUMBERS, "norm_topk_prob", "num_nextn_predict_layers"])
def test_a_key_that_is_absent_is_named(key: str) -> None:
    config = changed(key, None)
    *outer, last = key.split(".")
    where = config["text_config"]
    for name in outer:
        where = where[name]
    del where[last]
    with pytest.raises(StartError, match=f"text_config.{key} is 'absent': "):
        read(config)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [True, "1e-5", None, [1.0], math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused(key: str, value: Any) -> None:
    with pytest.raises(StartError) as refusal:
        read(changed(key, value))
    assert f"config.json: text_config.{key} is {value!r}: " in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("layer_types", ["linear_attention"] * 5, "a list of 6 names is needed"),
        ("layer_types", ["full_attention"] * 6, "'full_attention' is none of linear_attention"),
        ("layer_types", "linear_attention", "a list of 6 names"),
        ("mlp_layer_types", ["dense"] * 5 + ["moe"], "'moe' is none of dense, sparse"),
        ("indexer_types", ["full"] * 5 + ["shared"], "'shared' is none of full"),
        ("indexer_types", ["full"] * 5, "a list of 6 names"),
        ("index_topk", 18, "a multiple of index_kpool 4 is needed"),
        ("index_kpool", 3, "a divisor of 64 is needed"),
        ("num_experts_per_tok", 17, "there are 16 experts"),
        ("num_nextn_predict_layers", 2, "only 0 or 1 is supported"),
        ("num_nextn_predict_layers", -1, "a whole number of at least 0"),
        ("linear_attn_config", [], "an object is needed"),
        ("linear_attn_config.gate_lower_bound", 5.0, "a number from -5.5 to below 0"),
        ("linear_attn_config.gate_lower_bound", 0, "a number from -5.5 to below 0"),
        ("linear_attn_config.gate_lower_bound", -6.0, "a number from -5.5 to below 0"),
        ("linear_attn_config.short_conv_kernel_size", 1, "a whole number of at least 2"),
        ("linear_attn_config.kda_layers", [0, 2, 3], "layer_types says [0, 2, 3, 4]"),
        ("linear_attn_config.full_attn_layers", [], "layer_types says [1, 5]"),
        ("eos_token_id", [160], "token ids below vocab_size 160"),
        ("eos_token_id", -1, "token ids below vocab_size 160"),
        ("eos_token_id", "0", "token ids below vocab_size 160"),
        ("eos_token_id", [True], "token ids below vocab_size 160"),
        ("norm_topk_prob", 1, "true or false is needed"),
        ("rms_norm_eps", 0.0, "a number above 0 is needed"),
        ("hc_eps", -1e-6, "a number above 0 is needed"),
        ("swiglu_limit", -10, "a number above 0 is needed"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_the_reason(key: str, value: Any, why: str) -> None:
    config = changed(key, value)
    if key == "index_kpool":
        config["text_config"]["index_topk"] = 18
    with pytest.raises(StartError) as refusal:
        read(config)
    assert f"config.json: text_config.{key} is {value!r}: " in str(refusal.value)
    assert why in str(refusal.value)


def test_keys_that_reach_no_mathematics_are_left_alone() -> None:
    assert read(changed("initializer_range", 7) | {"transformers_version": None}) == read(raw())
