"""config.json of a glm5_next checkpoint, read key by key (spec glm53, section 1).

What this family cannot run is refused by key and value; keys that do not reach the text model's
mathematics are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tensorfold.core.share import IDS, WIDTH, Share, units
from tensorfold.families.common.reader import Reader, end_ids

LINEAR = "linear_attention"
SPARSE = ("deepseek_sparse_attention", "indexed_attention")
GRID = 64
# As in core/ops/kda_blocks.py, which imports torch.
LEAST_GATE = -5.5


class Held(NamedTuple):
    """What is held of the sums that ranks share: how many parts of the inner dimension of each
    kind of product, and the experts from id `first` on, in `ranges` that are summed apart. Cut by
    width, they are all of them, each with a part of its inner width."""

    kda: int
    dsa: int
    dense: int
    shared: int
    first: int
    experts: int
    ranges: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Sizes and constants of the text model; names follow the checkpoint's keys where they can.

    Of a rank's share, heads, kda_heads and intermediate_size are what it holds, as `held` is;
    everything else is the model's.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    linear: tuple[bool, ...]  # a layer: KDA, else DSA
    dense: tuple[bool, ...]  # a layer: dense MLP, else experts
    mtp_layers: int
    intermediate_size: int
    context: int
    norm_eps: float
    swiglu_limit: float
    end_ids: tuple[int, ...]
    # MLA
    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    v_size: int
    # index
    index_heads: int
    index_size: int
    index_top: int  # pools kept
    pool: int
    # KDA
    kda_heads: int
    kda_size: int
    conv: int
    gate_bound: float
    # experts
    experts: int
    experts_per_token: int
    shared_experts: int
    expert_size: int
    routed_scale: float
    normalise: bool
    # hyper-connections
    streams: int
    sinkhorn: int
    hc_eps: float
    # of the sums that ranks share
    expert_cut: str
    held: Held


NOTHING = Held(kda=0, dsa=0, dense=0, shared=0, first=0, experts=0, ranges=0)

# What ranks cut, by the checkpoint's keys.
HEADS, KDA_HEADS = "num_attention_heads", "linear_attn_config.num_heads"
DSA_OUT = "num_attention_heads * v_head_dim"
KDA_OUT = "linear_attn_config.num_heads * head_dim"
DENSE, SHARED = "intermediate_size", "moe_intermediate_size * n_shared_experts"
EXPERTS, EXPERT_SIZE = "n_routed_experts", "moe_intermediate_size"
VOCABULARY = "vocab_size"


def check_supported(text: Reader) -> None:
    """Refuse what would change the mathematics and is not built."""
    text.only("attention_bias", False)
    text.only("qk_rope_head_dim", 0)
    text.only("mla_use_nope", True)
    text.only("tie_word_embeddings", False)
    text.only("hidden_act", "silu")
    text.only("scoring_func", "sigmoid")
    text.only("topk_method", "noaux_tc")
    text.only("n_group", 1, None)
    text.only("topk_group", 1, None)
    text.only("index_kpool_compress", True)
    text.only("index_kpool_always_select_tail", True)
    text.only("mhc", True)
    text.only("rope_parameters", None)
    text.only("rope_scaling", None)
    text.only("quantization_config", None)
    text.only("model_type", "glm5_next_text", "glm5_next")


def check_kinds(text: Reader, linear: Reader, kinds: tuple[str, ...]) -> None:
    """The layer lists of linear_attn_config must tell the same story as layer_types."""
    wanted = {
        "kda_layers": [i for i, kind in enumerate(kinds) if kind == LINEAR],
        "full_attn_layers": [i for i, kind in enumerate(kinds) if kind != LINEAR],
    }
    for key, value in wanted.items():
        if key in linear.values and linear.values[key] != value:
            raise linear.refuse(key, f"layer_types says {value}")
    if "indexer_types" in text.values:
        text.names("indexer_types", len(kinds), ("full",))


def read(raw: Mapping[str, Any], expert_cut: str = IDS) -> Config:
    """The config of a checkpoint; raises `StartError` naming key and value."""
    top = Reader(raw, "")
    top.only("tie_word_embeddings", False)
    top.only("quantization_config", None)
    text = top.inside("text_config") if "text_config" in raw else top
    check_supported(text)
    layers = text.size("num_hidden_layers")
    kinds = text.names("layer_types", layers, (LINEAR, *SPARSE))
    mlps = text.names("mlp_layer_types", layers, ("dense", "sparse"))
    linear = text.inside("linear_attn_config")
    check_kinds(text, linear, kinds)
    pool, top_tokens = text.size("index_kpool"), text.size("index_topk")
    if top_tokens % pool:
        raise text.refuse("index_topk", f"a multiple of index_kpool {pool} is needed")
    if GRID % pool:
        raise text.refuse("index_kpool", f"a divisor of {GRID} is needed")
    vocab = text.size("vocab_size")
    config = Config(
        vocab_size=vocab,
        hidden_size=text.size("hidden_size"),
        layers=layers,
        linear=tuple(kind == LINEAR for kind in kinds),
        dense=tuple(kind == "dense" for kind in mlps),
        mtp_layers=text.size("num_nextn_predict_layers", 0),
        intermediate_size=text.size("intermediate_size"),
        context=text.size("max_position_embeddings"),
        norm_eps=text.positive("rms_norm_eps"),
        swiglu_limit=text.positive("swiglu_limit"),
        end_ids=end_ids(text, vocab),
        heads=text.size("num_attention_heads"),
        q_rank=text.size("q_lora_rank"),
        kv_rank=text.size("kv_lora_rank"),
        nope=text.size("qk_nope_head_dim"),
        v_size=text.size("v_head_dim"),
        index_heads=text.size("index_n_heads"),
        index_size=text.size("index_head_dim"),
        index_top=top_tokens // pool,
        pool=pool,
        kda_heads=linear.size("num_heads"),
        kda_size=linear.size("head_dim"),
        conv=linear.size("short_conv_kernel_size", 2),
        gate_bound=linear.number("gate_lower_bound"),
        experts=text.size("n_routed_experts"),
        experts_per_token=text.size("num_experts_per_tok"),
        shared_experts=text.size("n_shared_experts"),
        expert_size=text.size("moe_intermediate_size"),
        routed_scale=text.number("routed_scaling_factor"),
        normalise=text.flag("norm_topk_prob"),
        streams=text.size("hc_mult"),
        sinkhorn=text.size("hc_sinkhorn_iters"),
        hc_eps=text.positive("hc_eps"),
        expert_cut=expert_cut,
        held=NOTHING,
    )
    check_sizes(config, text, linear)
    return shared(config, Share())


def shared(whole: Config, share: Share) -> Config:
    """The config of a share; raises `StartError` naming the key that cannot be cut for it."""
    heads = share.size(whole.heads, HEADS)
    kda_heads = share.size(whole.kda_heads, KDA_HEADS)
    dense = share.size(whole.intermediate_size, DENSE)
    inner = whole.expert_size * whole.shared_experts
    share.bounds(whole.vocab_size, VOCABULARY)
    first, last = 0, whole.experts
    if whole.expert_cut == WIDTH:
        share.bounds(whole.expert_size, EXPERT_SIZE)
    else:
        first, last = share.bounds(whole.experts, EXPERTS)
    size = whole.kda_size
    held = Held(
        kda=share.parts(kda_heads * size, whole.kda_heads * size, KDA_OUT),
        dsa=share.parts(heads * whole.v_size, whole.heads * whole.v_size, DSA_OUT),
        dense=share.parts(dense, whole.intermediate_size, DENSE),
        shared=share.parts(share.size(inner, SHARED), inner, SHARED),
        first=first,
        experts=last - first,
        ranges=units(whole.experts) * (last - first) // whole.experts,
    )
    return replace(whole, heads=heads, kda_heads=kda_heads, intermediate_size=dense, held=held)


def check_sizes(config: Config, text: Reader, linear: Reader) -> None:
    if config.experts_per_token > config.experts:
        raise text.refuse("num_experts_per_tok", f"there are {config.experts} experts")
    if config.mtp_layers > 1:
        raise text.refuse("num_nextn_predict_layers", "only 0 or 1 is supported")
    if not LEAST_GATE <= config.gate_bound < 0:
        raise linear.refuse("gate_lower_bound", f"a number from {LEAST_GATE} to below 0 is needed")
    text.only("num_key_value_heads", config.heads)
    text.only("qk_head_dim", config.nope)
