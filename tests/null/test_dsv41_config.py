"""What dsv41 cannot run is refused by key and value, and the release's tensors are all named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tensorfold.core.errors import StartError
from tensorfold.families.dsv41 import names
from tensorfold.families.dsv41.config import Config, read
from tensorfold.families.dsv41.plugin import FAMILY
from tensorfold.families.dsv41.primes import is_prime
from tensorfold.families.dsv41.state import spec

DATA = Path(__file__).parents[1] / "data" / "dsv41"


def raw(name: str = "ckpt/config.json") -> dict[str, Any]:
    return json.loads((DATA / name).read_text())


def changed(base: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A config with one key of the text part, "outer.inner" for a nested one."""
    config = copy.deepcopy(base)
    *outer, last = key.split(".")
    where = config["text_config"]
    for name in outer:
        where = where[name]
    where[last] = value
    return config


@pytest.fixture(scope="module")
def release() -> Config:
    return read(raw("release_config.json"))


def test_the_golden_models_config_is_read() -> None:
    config = read(raw())
    assert (config.layers, config.window, config.ratios) == (7, 8, (0, 0, 2, 2, 1, 1, 1))
    assert config.end_ids == (1,)
    assert config.drafting is None
    assert not config.faithful
    assert config.engram is not None
    assert config.engram.columns == 6
    assert read(raw()["text_config"] | {"eos_token_id": 1, "image_token_id": 159}) == config


def test_the_releases_config_is_read_and_faithful_unless_told(release: Config) -> None:
    assert release.faithful
    assert release.quantised
    assert not read(raw("release_config.json"), "plain").faithful
    assert read(raw(), "faithful").faithful
    with pytest.raises(StartError, match="--numerics is 'exact'"):
        read(raw(), "exact")
    assert release.drafting is not None
    assert (release.drafting.stages, release.drafting.taps) == (3, (37, 38, 39))
    assert [release.kv_source(layer) for layer in (2, 7, 8, 19, 20, 39)] == [2, 2, 8, 14, 20, 20]


def test_every_text_tensor_of_the_release_is_named(release: Config) -> None:
    entries = list(names.inventory(release))
    drafts = [entry for entry in entries if entry.name.startswith("mtp.")]
    assert len({entry.name for entry in entries}) == len(entries) == 95_819
    assert sum(entry.bytes for entry in entries) == 509_315_486_040
    assert (len(drafts), sum(entry.bytes for entry in drafts)) == (2_401, 7_932_874_632)
    # What is named and never read is what the loader passes over.
    unread = [entry.name for entry in entries if not entry.read]
    assert len(unread) == 43
    assert all(map(FAMILY.ignored, unread))
    assert not any(FAMILY.ignored(spec.name) for spec in FAMILY.tensors(release))
    assert FAMILY.ignored("vision.blocks.0.attn.qkv.weight")
    tables = [entry.name for entry in entries if entry.table]
    assert tables == [
        f"layers.{n}.engram.embed.{part}" for n in (1, 14) for part in ("weight", "scale")
    ]


def test_the_primes_of_the_release(release: Config) -> None:
    assert release.engram is not None
    flat = [prime for layer in release.engram.primes for order in layer for prime in order]
    between = [number for number in range(16_000_000, flat[-1] + 1) if is_prime(number)]
    assert flat == between
    assert (flat[0], flat[23], flat[24], flat[47]) == (16000057, 16000463, 16000477, 16000889)


def test_what_a_stream_of_the_release_keeps(release: Config) -> None:
    kept = spec(release, window_rows=6)
    # Two and a half rows a token, of a latent and a key each, in float32.
    assert kept.bytes_per_token() == 5 * (512 + 128) * 4 // 2
    rings = {entry.name: entry.rows for entry in kept.entries if hasattr(entry, "rows")}
    assert rings["window.39"] == 133
    assert rings["open.14"] == 7
    assert rings["ids"] == 9
    assert "draft.2" not in rings
    drafting = {entry.name for entry in spec(release, window_rows=6, drafts=True).entries}
    assert {"draft.0", "draft.1", "draft.2"} <= drafting


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (True,),
    "num_key_value_heads": (2,),
    "tie_word_embeddings": (True,),
    "hidden_act": ("gelu",),
    "scoring_func": ("sigmoid",),
    "topk_method": ("greedy",),
    "norm_topk_prob": (False,),
    "n_shared_experts": (2,),
    "n_group": (4,),
    "rope_scaling.rope_type": ("linear",),
    "compress_ratios": ([0, 0, 4, 4, 1, 1, 1], [0, 0, 2, 2, 1, 1], [0, 0, 2, 2, 1, 1, 1, 1], 2),
    "kv_source_layer_ids": ([4], [4, 2], [2, 9], [2], [0, 2, 4], [2, 3, 4]),
    "index_source_layer_ids": ([2], [2, 6], [2, 4, 4], ["2"]),
    "candidate_source_layer_id": (5, 2),
    "engram_num_embeddings": ([384, 551], [384]),
    "engram_layer_ids": ([1, 7], [4, 1]),
    "engram_pad_token_id": (160, -1),
    "num_experts_per_tok": (7, 0),
    "o_groups": (3,),
    "qk_rope_head_dim": (31, 66, 0),
    "rms_norm_eps": (0, -1e-20, float("nan"), "1e-20"),
    "hidden_size": (0, 12.5, True, None),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in UNSUPPORTED.items() for value in values]
)
def test_an_unsupported_value_is_refused_by_key_and_value(key: str, value: Any) -> None:
    with pytest.raises(StartError) as refused:
        read(changed(raw(), key, value))
    assert key in str(refused.value)
    if not isinstance(value, float):
        assert repr(value) in str(refused.value)


DRAFTS: dict[str, tuple[Any, ...]] = {
    "dspark_target_layer_ids": ([], [39, 38], [37, 40]),
    "dspark_noise_token_id": (129280,),
    "dspark_num_experts_per_tok": (129,),
    "dspark_block_size": (0,),
    "num_nextn_predict_layers": (-1, 2),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in DRAFTS.items() for value in values]
)
def test_a_drafter_that_cannot_run_is_refused(key: str, value: Any) -> None:
    # Two stages fit no list of 43 ratios: that key is named.
    wanted = "compress_ratios" if (key, value) == ("num_nextn_predict_layers", 2) else key
    with pytest.raises(StartError, match=wanted):
        read(changed(raw("release_config.json"), key, value))


# Without them: no Engram, no YaRN, and for the others the one value that is supported.
OPTIONAL = {
    "engram_layer_ids",
    "model_type",
    "n_shared_experts",
    "norm_topk_prob",
    "num_key_value_heads",
    "rope_scaling",
    "scoring_func",
}


@pytest.mark.parametrize("key", sorted(raw()["text_config"].keys() - OPTIONAL))
def test_a_missing_key_is_named(key: str) -> None:
    config = raw()
    del config["text_config"][key]
    with pytest.raises(StartError, match=key):
        read(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [("quant_method", "awq"), ("weight_block_size", [128, 128]), ("scale_fmt", None)],
)
def test_another_packing_is_refused(key: str, value: Any) -> None:
    config = raw("release_config.json")
    config["quantization_config"][key] = value
    with pytest.raises(StartError, match=f"quantization_config.{key}"):
        read(config)


def test_faithful_numerics_need_sizes_of_whole_blocks() -> None:
    config = changed(raw(), "moe_intermediate_size", 48)
    assert read(config).expert_size == 48
    with pytest.raises(StartError, match="moe_intermediate_size is 48"):
        read(config, "faithful")
