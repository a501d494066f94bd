"""config.json of a deepseek_v41 checkpoint, read key by key (spec dsv41, section 1).

What this family cannot run is refused by key and value; keys that do not reach the text model's
mathematics are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tensorfold.core.errors import StartError
from tensorfold.core.share import IDS, WIDTH, Share, units
from tensorfold.families.common.reader import Reader, end_ids
from tensorfold.families.dsv41.primes import engram_primes

# Rows of a page of state. Prompts may be cut anywhere.
PAGE = 64
GRID = 1
PLAIN, FAITHFUL = "plain", "faithful"
QUANTISED = {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"}
# Values that share a scale where rows or weights are rounded (section 2.10).
ROUNDED = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Yarn:
    """YaRN of the tables with the larger base."""

    factor: float
    beta_fast: float
    beta_slow: float
    original: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Engram:
    """Layers with an n-gram table, the tables' rows, and the primes by layer, order and head."""

    layers: tuple[int, ...]
    rows: tuple[int, ...]
    primes: tuple[tuple[tuple[int, ...], ...], ...]
    size: int
    pad_id: int
    compressed: int

    @property
    def orders(self) -> int:
        return len(self.primes[0])

    @property
    def columns(self) -> int:
        return self.orders * len(self.primes[0][0])


SHARED = "moe_intermediate_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafting:
    """The DSpark drafter: its stages, the rows of a block, and where it taps the main model."""

    stages: int
    block: int
    noise_id: int
    taps: tuple[int, ...]
    rank: int
    experts: int
    experts_per_token: int


class Run(NamedTuple):
    """The routed experts from id `first` on, in `ranges` that are summed apart. Cut by width, they
    are all of them, each with a part of its inner width."""

    first: int
    experts: int
    ranges: int


NO_RUN = Run(0, 0, 0)


class Held(NamedTuple):
    """What is held of the sums that ranks share: parts of the inner dimensions of the attention's
    output and of the shared expert, and experts of the model and of its drafter."""

    output: int
    shared: int
    experts: Run
    draft_experts: Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Sizes and constants of the text model; names follow the checkpoint's keys where they can.

    Of a rank's share, heads and groups are what it holds, as `held` is; the rest is the model's.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    context: int
    norm_eps: float
    swiglu_limit: float
    end_ids: tuple[int, ...]
    image_id: int
    faithful: bool  # rounds where the quantised release does
    quantised: bool  # the checkpoint is packed as the release is
    # attention
    heads: int
    head_size: int
    rope_size: int
    q_rank: int
    groups: int
    o_rank: int
    window: int
    ratios: tuple[int, ...]  # a layer: tokens of a compressed row, 0 for the window alone
    kv_sources: tuple[int, ...]
    theta: float
    compress_theta: float
    yarn: Yarn | None
    # index
    index_sources: tuple[int, ...]
    index_heads: int
    index_size: int
    index_top: int
    candidate_source: int
    candidate_blocks: int
    candidate_size: int
    # experts
    expert_size: int
    experts: int
    experts_per_token: int
    routed_scale: float
    # hyper-connections
    streams: int
    sinkhorn: int
    hc_eps: float
    engram: Engram | None
    drafting: Drafting | None
    # of the sums that ranks share
    expert_cut: str
    held: Held

    def kv_source(self, layer: int) -> int:
        return max(source for source in self.kv_sources if source <= layer)


def check_supported(text: Reader) -> None:
    """Refuse what would change the mathematics and is not built."""
    text.only("attention_bias", False)
    text.only("num_key_value_heads", 1)
    text.only("tie_word_embeddings", False)
    text.only("hidden_act", "silu")
    text.only("scoring_func", "sqrtsoftplus")
    text.only("topk_method", "noaux_tc")
    text.only("norm_topk_prob", True)
    text.only("n_shared_experts", 1)
    text.only("n_group", 1, None)
    text.only("topk_group", 1, None)
    text.only("gate_temp", 1, None)


def read_yarn(text: Reader) -> Yarn | None:
    if text.values.get("rope_scaling") is None:
        return None
    scaling = text.inside("rope_scaling")
    scaling.only("rope_type", "yarn")
    scaling.only("type", "yarn")
    return Yarn(
        factor=scaling.positive("factor"),
        beta_fast=scaling.positive("beta_fast"),
        beta_slow=scaling.positive("beta_slow"),
        original=scaling.size("original_max_position_embeddings"),
    )


def read_engram(text: Reader, layers: int) -> Engram | None:
    ids = text.sizes("engram_layer_ids")
    if not ids:
        return None
    if list(ids) != sorted(set(ids)) or ids[-1] >= layers:
        raise text.refuse("engram_layer_ids", f"ascending layers below {layers} are needed")
    grams = text.size("engram_max_ngram_size", 2)
    heads, start = text.size("engram_n_heads"), text.size("engram_vocab_size", 2)
    primes = engram_primes(len(ids), grams - 1, heads, start)
    rows = text.sizes("engram_num_embeddings", len(ids))
    sums = tuple(sum(map(sum, layer)) for layer in primes)
    if rows != sums:
        raise text.refuse("engram_num_embeddings", f"the drawn primes sum to {list(sums)}")
    return Engram(
        layers=ids,
        rows=rows,
        primes=primes,
        size=text.size("engram_head_dim"),
        pad_id=text.size("engram_pad_token_id", 0),
        compressed=text.size("engram_compressed_vocab_size"),
    )


def read_drafting(text: Reader, layers: int, vocab: int) -> Drafting | None:
    if "num_nextn_predict_layers" not in text.values or not text.size(
        "num_nextn_predict_layers", 0
    ):
        return None
    taps = text.sizes("dspark_target_layer_ids")
    if not taps or list(taps) != sorted(set(taps)) or taps[-1] >= layers:
        raise text.refuse("dspark_target_layer_ids", f"ascending layers below {layers} are needed")
    noise = text.size("dspark_noise_token_id", 0)
    if noise >= vocab:
        raise text.refuse("dspark_noise_token_id", f"a token id below {vocab} is needed")
    experts, top = text.size("dspark_n_routed_experts"), text.size("dspark_num_experts_per_tok")
    if top > experts:
        raise text.refuse("dspark_num_experts_per_tok", f"there are {experts} experts")
    return Drafting(
        stages=text.size("num_nextn_predict_layers"),
        block=text.size("dspark_block_size"),
        noise_id=noise,
        taps=taps,
        rank=text.size("dspark_markov_rank"),
        experts=experts,
        experts_per_token=top,
    )


def read_quantised(top: Reader, text: Reader) -> bool:
    """Whether the checkpoint is packed as the release is."""
    found = next((r for r in (top, text) if r.values.get("quantization_config") is not None), None)
    if found is None:
        return False
    packing = found.inside("quantization_config")
    for key, value in QUANTISED.items():
        if packing.values.get(key) != value:
            raise packing.refuse(key, f"only {value!r} is supported")
    packing.only("expert_dtype", "fp4")
    return True


def read_numerics(numerics: str, quantised: bool) -> bool:
    if numerics not in ("", PLAIN, FAITHFUL):
        raise StartError(f"--numerics is {numerics!r}: deepseek_v41 has {PLAIN} and {FAITHFUL}")
    return numerics == FAITHFUL if numerics else quantised


def read(raw: Mapping[str, Any], numerics: str = "", expert_cut: str = IDS) -> Config:
    """The config of a checkpoint; raises `StartError` naming key and value.

    `numerics` is plain or faithful; empty: faithful where the checkpoint is the quantised release.
    """
    top = Reader(raw, "")
    text = top.inside("text_config") if "text_config" in raw else top
    top.only("tie_word_embeddings", False)
    check_supported(text)
    layers, vocab = text.size("num_hidden_layers"), text.size("vocab_size")
    drafting = read_drafting(text, layers, vocab)
    stages = drafting.stages if drafting else 0
    ratios = text.sizes("compress_ratios")
    if len(ratios) not in (layers, layers + stages) or any(ratios[layers:]):
        raise text.refuse("compress_ratios", f"{layers} ratios are needed, and 0 for each draft")
    if not set(ratios) <= {0, 1, 2}:
        raise text.refuse("compress_ratios", "only ratios of 0, 1 and 2 are supported")
    quantised = read_quantised(top, text)
    ends = text if "eos_token_id" in text.values else top
    image = text if "image_token_id" in text.values else top
    config = Config(
        vocab_size=vocab,
        hidden_size=text.size("hidden_size"),
        layers=layers,
        context=text.size("max_position_embeddings"),
        norm_eps=text.positive("rms_norm_eps"),
        swiglu_limit=text.positive("swiglu_limit"),
        end_ids=end_ids(ends, vocab),
        image_id=image.size("image_token_id", 0) if "image_token_id" in image.values else -1,
        faithful=read_numerics(numerics, quantised),
        quantised=quantised,
        heads=text.size("num_attention_heads"),
        head_size=text.size("head_dim"),
        rope_size=text.size("qk_rope_head_dim", 2),
        q_rank=text.size("q_lora_rank"),
        groups=text.size("o_groups"),
        o_rank=text.size("o_lora_rank"),
        window=text.size("sliding_window"),
        ratios=ratios[:layers],
        kv_sources=text.sizes("kv_source_layer_ids"),
        theta=text.positive("rope_theta"),
        compress_theta=text.positive("compress_rope_theta"),
        yarn=read_yarn(text),
        index_sources=text.sizes("index_source_layer_ids"),
        index_heads=text.size("index_n_heads"),
        index_size=text.size("index_head_dim"),
        index_top=text.size("index_topk"),
        candidate_source=text.size("candidate_source_layer_id", 0),
        candidate_blocks=text.size("candidate_topk_blocks"),
        candidate_size=text.size("candidate_block_size"),
        expert_size=text.size("moe_intermediate_size"),
        experts=text.size("n_routed_experts"),
        experts_per_token=text.size("num_experts_per_tok"),
        routed_scale=text.number("routed_scaling_factor"),
        streams=text.size("hc_mult"),
        sinkhorn=text.size("hc_sinkhorn_iters"),
        hc_eps=text.positive("hc_eps"),
        engram=read_engram(text, layers) if "engram_layer_ids" in text.values else None,
        drafting=drafting,
        expert_cut=expert_cut,
        held=Held(0, 0, NO_RUN, NO_RUN),
    )
    check_sizes(config, text)
    check_sources(config, text)
    return shared(config, Share())


def shared(whole: Config, share: Share) -> Config:
    """The config of a share; raises `StartError` naming the key that cannot be cut for it.

    Heads are cut with their groups, since a group's heads have one product.
    """
    groups = share.size(whole.groups, "o_groups")
    inner = share.size(whole.expert_size, SHARED)
    share.bounds(whole.vocab_size, "vocab_size")
    for key, size in ((SHARED, inner), ("o_lora_rank * o_groups", groups * whole.o_rank)):
        if whole.faithful and size % ROUNDED:
            raise StartError(
                f"--ranks is {share.ranks}, and {key} is rounded in blocks of {ROUNDED}, which "
                f"{size} of it are not"
            )
    drafting = whole.drafting
    held = Held(
        output=share.parts(groups * whole.o_rank, whole.groups * whole.o_rank, "o_lora_rank"),
        shared=share.parts(inner, whole.expert_size, SHARED),
        experts=run_of(whole, whole.experts, share, "n_routed_experts"),
        draft_experts=(
            run_of(whole, drafting.experts, share, "dspark_n_routed_experts")
            if drafting
            else NO_RUN
        ),
    )
    return replace(whole, heads=whole.heads // whole.groups * groups, groups=groups, held=held)


def run_of(whole: Config, experts: int, share: Share, key: str) -> Run:
    """Whose inner width can be cut wherever the shared expert's can: it is of the same size."""
    by_width = whole.expert_cut == WIDTH
    first, last = (0, experts) if by_width else share.bounds(experts, key)
    return Run(first, last - first, units(experts) * (last - first) // experts)


def check_sizes(config: Config, text: Reader) -> None:
    if config.experts_per_token > config.experts:
        raise text.refuse("num_experts_per_tok", f"there are {config.experts} experts")
    if config.heads % config.groups:
        raise text.refuse("o_groups", f"a divisor of the {config.heads} heads is needed")
    if config.rope_size % 2 or config.rope_size > min(config.head_size, config.index_size):
        raise text.refuse("qk_rope_head_dim", "an even number within every head is needed")
    if config.engram and config.engram.pad_id >= config.vocab_size:
        raise text.refuse("engram_pad_token_id", f"a token id below {config.vocab_size} is needed")
    rounded = {
        "head_dim": config.head_size,
        "index_head_dim": config.index_size,
        "hidden_size": config.hidden_size,
        "moe_intermediate_size": config.expert_size,
        "q_lora_rank": config.q_rank,
        "o_lora_rank": config.groups * config.o_rank,
    }
    for key, size in rounded.items():
        if config.faithful and size % ROUNDED:
            raise text.refuse(key, f"faithful numerics round blocks of {ROUNDED}")


def check_sources(config: Config, text: Reader) -> None:
    """Every layer with a ratio reads rows and picks that a layer before it made at that ratio."""
    for key, sources in (
        ("kv_source_layer_ids", config.kv_sources),
        ("index_source_layer_ids", config.index_sources),
    ):
        if list(sources) != sorted(set(sources)) or any(s >= config.layers for s in sources):
            raise text.refuse(key, f"ascending layers below {config.layers} are needed")
        for layer, ratio in enumerate(config.ratios):
            before = [source for source in sources if source <= layer]
            if ratio and (not before or config.ratios[before[-1]] != ratio):
                raise text.refuse(key, f"layer {layer} of ratio {ratio} has no source of its own")
        if any(not config.ratios[source] for source in sources):
            raise text.refuse(key, "a source compresses, and one of these layers has ratio 0")
    if not set(config.kv_sources) <= set(config.index_sources):
        raise text.refuse("kv_source_layer_ids", "every one of them must be an index source too")
    source = config.candidate_source
    users = [s for s in config.index_sources if s > source]
    if users and source not in config.index_sources:
        raise text.refuse("candidate_source_layer_id", "an index source is needed")
    if any(config.ratios[user] != config.ratios[source] for user in users):
        raise text.refuse("candidate_source_layer_id", "its users must have its ratio")
    if any(config.kv_source(user) != config.kv_source(source) for user in users):
        raise text.refuse("candidate_source_layer_id", "its users must read its rows")
