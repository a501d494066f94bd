"""What a forward cannot do without: bytes that must move, and operations.

Bytes are those of weights that are used, once however many rows use them, with only the experts
that were really picked, and of the state that rows read and write. Operations are those of the
products, two for a weight and row, and of attention over what rows see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from tensorfold.core.state_spec import SIZES

# Fields of a layer's weights that have a weight for every expert.
EXPERTS = ("gate_up_EDI", "down_EID")
# A field with tables, of which a forward reads the rows that its tokens name.
TABLE = "table"


def tensors_of(part: Any, *, experts: bool) -> Iterator[Tensor]:
    """The tensors of nested named tuples without their tables; of every expert, or of nothing but
    them."""
    if isinstance(part, Tensor):
        if not experts:
            yield part
    elif hasattr(part, "_fields"):
        for name in part._fields:
            value = getattr(part, name)
            if name == TABLE:
                continue
            if name in EXPERTS:
                if experts:
                    yield value
            else:
                yield from tensors_of(value, experts=experts)
    elif isinstance(part, tuple):
        for value in part:
            yield from tensors_of(value, experts=experts)


def size_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def of_one_expert(layer: Any) -> list[tuple[int, int]]:
    """Values and bytes of one expert in each of its weights."""
    found = []
    for weight in tensors_of(layer, experts=True):
        each = weight.numel() // weight.shape[0]
        found.append((each, each * weight.element_size()))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What rows of one family at a context read of their state.

    `bytes` are those that one window row of a stream reads and writes; `operations` those of
    attention and recurrence of prompt rows at positions [start, end).
    """

    bytes: Callable[[Any, int, str], int]
    operations: Callable[[Any, int, int], int]


def glm53_bytes(config: Any, context: int, dtype: str) -> int:
    size, total = SIZES[dtype], 0
    for linear in config.linear:
        if linear:
            channels = 3 * config.kda_heads * config.kda_size
            total += 2 * config.kda_heads * config.kda_size**2 * SIZES["float32"]
            total += 2 * (config.conv - 1) * channels * size
        else:
            most = config.index_top * config.pool + config.pool - 1
            total += min(context, most) * config.kv_rank * size
            if context > most:
                total += context // config.pool * config.index_size * size
    return total


def glm53_operations(config: Any, start: int, end: int) -> int:
    most, total = config.index_top * config.pool + config.pool - 1, 0
    seen = sum(min(row + 1, most) for row in range(start, end))
    pools = sum((row + 1) // config.pool for row in range(start, end) if row >= most)
    for linear in config.linear:
        if linear:
            total += (end - start) * config.kda_heads * config.kda_size**2 * 6
        else:
            total += seen * config.heads * config.kv_rank * 4
            total += pools * config.index_heads * config.index_size * 2
    return total


def dsv41_bytes(config: Any, context: int, dtype: str) -> int:
    size, total = SIZES[dtype], 0
    for layer, ratio in enumerate(config.ratios):
        total += min(context, config.window) * config.head_size * size
        if ratio:
            total += min(context // ratio, config.index_top) * config.head_size * size
        if layer in config.index_sources:
            total += context // ratio * config.index_size * size
    if config.engram is not None:
        total += len(config.engram.layers) * config.engram.columns * config.engram.size * size
    return total


def dsv41_operations(config: Any, start: int, end: int) -> int:
    total = 0
    for layer, ratio in enumerate(config.ratios):
        listed = sum(min(row + 1, config.window) for row in range(start, end))
        if ratio:
            listed += sum(min((row + 1) // ratio, config.index_top) for row in range(start, end))
        total += listed * config.heads * config.head_size * 4
        if layer in config.index_sources:
            rows = sum((row + 1) // ratio for row in range(start, end))
            total += rows * config.index_heads * config.index_size * 2
    return total


SEEN: Mapping[str, Seen] = {
    "glm53": Seen(bytes=glm53_bytes, operations=glm53_operations),
    "dsv41": Seen(bytes=dsv41_bytes, operations=dsv41_operations),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Floors:
    """Floors of one model: a family's name, config and weights, and the engine's format."""

    family: str
    config: Any
    weights: Any
    dtype: str

    def fixed(self) -> list[Tensor]:
        """Weights that every forward uses."""
        weights = self.weights
        return [*tensors_of(weights.layers, experts=False), weights.norm, weights.head]

    def round_bytes(self, picked: Sequence[int], contexts: Sequence[int]) -> int:
        """A round of one row for each of `contexts`; `picked` are the different experts that its
        rows picked, by layer that has experts."""
        layers = [layer for layer in self.weights.layers if of_one_expert(layer)]
        assert len(picked) == len(layers), (len(picked), len(layers))
        experts = sum(
            count * sum(size for _, size in of_one_expert(layer))
            for count, layer in zip(picked, layers, strict=True)
        )
        state = sum(
            SEEN[self.family].bytes(self.config, context, self.dtype) for context in contexts
        )
        embed = len(contexts) * size_of(self.weights.embed) // self.weights.embed.shape[0]
        return sum(map(size_of, self.fixed())) + experts + state + embed

    def prompt_operations(self, start: int, end: int) -> int:
        """Rows [start, end) of one prompt, the logits of the last of them."""
        top = self.config.experts_per_token
        per_row = sum(
            prod(weight.shape)
            for weight in tensors_of(self.weights.layers, experts=False)
            if weight.dim() > 1
        )
        for layer in self.weights.layers:
            per_row += top * sum(values for values, _ in of_one_expert(layer))
        products = 2 * per_row * (end - start) + 2 * self.weights.head.numel()
        return products + SEEN[self.family].operations(self.config, start, end)
