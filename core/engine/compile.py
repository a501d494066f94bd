"""Graph capture: the ops as `torch.library` ops, and the compiler of a layer.

Under capture an op is opaque: only its shape function is looked into. Libraries of ops are made
once a backend and process, since torch keeps them for the process's life.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tensorfold.core.ops import SPECS, Ops


def library_ops(namespace: str, ops: Ops, ranks: int = 1) -> Ops:
    """The same table behind `torch.ops.<namespace>`, with schemas and shape functions.

    A process's further tables of a namespace have a number behind it.
    """
    earlier = sum(library.ns.rstrip("0123456789") == namespace for library in KEPT)
    namespace += str(earlier or "")
    library = torch.library.Library(namespace, "DEF")
    wrapped: dict[str, Callable[..., Any]] = {}
    for spec in SPECS:
        call = getattr(ops, spec.name)
        library.define(spec.name + spec.schema)
        library.impl(spec.name, fresh_outputs(call), "CompositeExplicitAutograd")
        torch.library.register_fake(f"{namespace}::{spec.name}", spec.shape, lib=library)
        wrapped[spec.name] = getattr(getattr(torch.ops, namespace), spec.name).default
    if ranks > 1:
        # A layer may exchange what it found: to a compiler, an op as any other.
        library.define("gather(Tensor part) -> Tensor")
        library.impl("gather", ops.gather, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{namespace}::gather", gathered(ranks), lib=library)
        wrapped["gather"] = getattr(torch.ops, namespace).gather.default
    KEPT.append(library)
    return replace(ops, **wrapped)


# A library's ops live as long as the library object does.
KEPT: list[torch.library.Library] = []


def gathered(ranks: int) -> Callable[[Tensor], Tensor]:
    """The shape function of `Ops.gather`."""
    return lambda part: part.new_empty(ranks, *part.shape)


def fresh_outputs(call: Callable[..., Any]) -> Callable[..., Any]:
    """An op's outputs may not be views of its inputs, nor laid out otherwise than promised."""

    @functools.wraps(call)
    def run(*args: Any) -> Any:
        result = call(*args)
        if isinstance(result, tuple):
            return tuple(part.contiguous() for part in result)
        return result.contiguous()

    return run


# A kind has few graphs (a size of one is always its own), but more than torch's default bound.
GRAPHS = 64


def capturing(function: Callable[..., Any], *, backend: Any = "inductor") -> Callable[..., Any]:
    """`function` as one graph with dynamic rows; a break in it is an error."""
    torch._dynamo.config.recompile_limit = GRAPHS
    # Sizes that happen to be equal once are not equal always.
    torch.fx.experimental._config.use_duck_shape = False
    return torch.compile(function, fullgraph=True, dynamic=True, backend=backend)


def compile_layer(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kind of layer, compiled."""
    return capturing(function)


def fix_sizes(held: Any) -> None:
    """Tell the compiler that tensors under `held` never change their sizes: weights and state.

    With sizes that are numbers, graphs are traced sooner, have fewer guards and simpler kernels.
    """
    if isinstance(held, Tensor):
        torch._dynamo.mark_static(held)
    elif is_dataclass(held) and not isinstance(held, type):
        for field in fields(held):
            fix_sizes(getattr(held, field.name))
    elif isinstance(held, dict | list | tuple):
        for part in held.values() if isinstance(held, dict) else held:
            fix_sizes(part)
