"""Names, shapes and packing of a checkpoint's text tensors (spec dsv41, section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from tensorfold.core.family_api import CutProduct, TensorSpec
from tensorfold.core.share import WIDTH, units
from tensorfold.families.dsv41.config import ROUNDED, Config

# Parts of the release that are not served.
VISION = ("vision.", "aligner.", "image_start", "image_end", "image_newline")
# A router's second bias, which image tokens alone use.
IMAGE_BIAS = ".gate.bias_vl"

BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


class Entry(NamedTuple):
    """A tensor of the release: name, safetensors dtype and stored shape; `table` as in
    `TensorSpec`, `read` whether text needs it. `wide` ones are held in float32 in an engine of any
    format, as those are that are stored so. What ranks cut is said as in `TensorSpec`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    table: bool = False
    read: bool = True
    wide: bool = False
    axis: int | None = None
    units: int = 1
    unit: int | None = None

    @property
    def bytes(self) -> int:
        return prod(self.shape) * BYTES[self.dtype]


def bf16(name: str, *shape: int, wide: bool = False) -> Iterator[Entry]:
    yield Entry(name + ".weight", "BF16", shape, wide=wide)


def fp8(config: Config, name: str, rows: int, columns: int) -> Iterator[Entry]:
    """A linear weight; the release has a scale for each tile of 32 by 32."""
    yield Entry(name + ".weight", "F8_E4M3", (rows, columns))
    if config.quantised:
        yield Entry(name + ".scale", "F8_E8M0", (tiles(rows), tiles(columns)))


def fp4(config: Config, name: str, rows: int, columns: int) -> Iterator[Entry]:
    """An expert's weight; the release packs two values a byte, with a scale for 32 of a row."""
    yield Entry(name + ".weight", "I8", (rows, columns // 2 if config.quantised else columns))
    if config.quantised:
        yield Entry(name + ".scale", "F8_E8M0", (rows, tiles(columns)))


def cut(entries: Iterator[Entry], axis: int, count: int) -> Iterator[Entry]:
    for entry in entries:
        yield entry._replace(axis=axis, units=count)


def tiles(size: int) -> int:
    return -(-size // ROUNDED)


def attention(config: Config, layer: int | None) -> Iterator[Entry]:
    """`layer` is none for a draft stage, which has the window alone."""
    d, size = config.hidden_size, config.head_size
    inner = config.heads * size
    yield from fp8(config, "attn.wq_a", config.q_rank, d)
    yield from bf16("attn.q_norm", config.q_rank)
    groups = units(config.groups)
    yield from cut(fp8(config, "attn.wq_b", inner, config.q_rank), 0, groups)
    yield from fp8(config, "attn.wkv", size, d)
    yield from bf16("attn.kv_norm", size)
    down = config.groups * config.o_rank
    yield from cut(fp8(config, "attn.wo_a", down, inner // config.groups), 0, groups)
    yield from cut(fp8(config, "attn.wo_b", d, down), 1, groups)
    yield Entry("attn.attn_sink", "F32", (config.heads,), axis=0, units=groups)
    if layer in config.kv_sources:
        assert layer is not None
        gates = config.ratios[layer] > 1
        yield from bf16("attn.compressor.wkv", size, d, wide=gates)
        if gates:
            yield from bf16("attn.compressor.wgate", size, d, wide=True)
        yield from bf16("attn.compressor.norm", size)
        yield from bf16("attn.indexer.wk", config.index_size, size)
        yield from bf16("attn.indexer.k_norm", config.index_size)
    if layer in config.index_sources:
        heads = config.index_heads
        yield from fp8(config, "attn.indexer.wq_b", heads * config.index_size, config.q_rank)
        yield from bf16("attn.indexer.weights_proj", heads, d)


def gated(config: Config, where: str, packed: bool) -> Iterator[Entry]:
    pack = fp4 if packed else fp8
    d, inner = config.hidden_size, config.expert_size
    yield from pack(config, f"{where}.w1", inner, d)
    yield from pack(config, f"{where}.w3", inner, d)
    yield from pack(config, f"{where}.w2", d, inner)


def moe(config: Config, experts: int) -> Iterator[Entry]:
    yield from bf16("ffn.gate", experts, config.hidden_size, wide=True)
    yield Entry("ffn.gate.bias", "F32", (experts,))
    if config.quantised:
        yield Entry("ffn" + IMAGE_BIAS, "F32", (experts,), read=False)
    count = units(experts)
    for expert in range(experts):
        own = gated(config, f"ffn.experts.{expert}", True)
        if config.expert_cut == WIDTH:
            yield from by_width(config, own)
            continue
        for entry in own:
            yield entry._replace(units=count, unit=expert * count // experts)
    yield from by_width(config, gated(config, "ffn.shared_experts", False))


def by_width(config: Config, entries: Iterator[Entry]) -> Iterator[Entry]:
    """Tensors of an expert, by whose inner width ranks cut them."""
    for entry in entries:
        axis = 1 if ".w2." in entry.name else 0
        yield entry._replace(axis=axis, units=units(config.expert_size))


def hyper(config: Config) -> Iterator[Entry]:
    n = config.streams
    outputs = 2 * n + n * n
    for which in ("attn", "ffn"):
        yield Entry(f"hc_{which}_fn", "F32", (outputs, n * config.hidden_size))
        yield Entry(f"hc_{which}_base", "F32", (outputs,))
        yield Entry(f"hc_{which}_scale", "F32", (3,))
        yield from bf16(f"{which}_norm", config.hidden_size)


def engram(config: Config, layer: int) -> Iterator[Entry]:
    own = config.engram
    if own is None or layer not in own.layers:
        return
    rows = own.rows[own.layers.index(layer)]
    yield Entry("engram.embed.weight", "F8_E4M3", (rows, own.size), table=True)
    if config.quantised:
        yield Entry("engram.embed.scale", "F8_E8M0", (rows, tiles(own.size)), table=True)
    n, d = config.streams, config.hidden_size
    yield from fp8(config, "engram.wkv", (n + 1) * d, own.columns * own.size)
    yield Entry("engram.q_weight", "BF16", (n, d), wide=True)
    yield Entry("engram.k_weight", "BF16", (n, d), wide=True)


def stage(config: Config, index: int) -> Iterator[Entry]:
    """One draft stage; the first and the last have tensors of their own."""
    own, d = config.drafting, config.hidden_size
    assert own is not None
    yield from attention(config, None)
    yield from hyper(config)
    yield from moe(config, own.experts)
    if index == 0:
        yield from fp8(config, "main_proj", d, len(own.taps) * d)
        yield from bf16("main_norm", d)
    if index == own.stages - 1:
        yield from bf16("norm", d)
        yield from bf16("markov_head.embed", config.vocab_size, own.rank)
        yield from bf16("markov_head.head", config.vocab_size, own.rank)
        yield from bf16("confidence_head.proj", 1, d + own.rank, wide=True)


def inventory(config: Config) -> Iterator[Entry]:
    """Every text tensor, as the release stores it; a plain checkpoint has the same names."""
    d, vocab = config.hidden_size, config.vocab_size
    yield from bf16("embed", vocab, d)
    yield from cut(bf16("head", vocab, d), 0, units(vocab))
    yield from bf16("norm", d)
    for layer in range(config.layers):
        parts = (
            attention(config, layer),
            hyper(config),
            moe(config, config.experts),
            engram(config, layer),
        )
        for part in parts:
            yield from (entry._replace(name=f"layers.{layer}.{entry.name}") for entry in part)
    for index in range(config.drafting.stages if config.drafting else 0):
        for entry in stage(config, index):
            yield entry._replace(name=f"mtp.{index}.{entry.name}")


def cut_products(config: Config) -> tuple[CutProduct, ...]:
    inner, vocab = config.expert_size, config.vocab_size
    heads = config.heads * config.head_size
    return (
        CutProduct("linear", config.q_rank, ((heads, units(config.groups)),)),
        CutProduct("linear", config.hidden_size, ((inner, units(inner)),) * 2),
        CutProduct("linear", config.hidden_size, ((vocab, units(vocab)),)),
    )


def tensors(config: Config) -> tuple[TensorSpec, ...]:
    """Every tensor that the text model reads, draft stages included."""
    return tuple(
        TensorSpec(
            entry.name,
            entry.shape,
            entry.table,
            "float32" if entry.wide or entry.dtype == "F32" else "",
            entry.axis,
            entry.units,
            entry.unit,
        )
        for entry in inventory(config)
        if entry.read
    )


def ignored(name: str) -> str:
    if name.startswith(VISION):
        return "vision"
    return "image bias of routers" if name.endswith(IMAGE_BIAS) else ""
