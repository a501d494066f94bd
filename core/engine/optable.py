"""Choosing an op table: every op's candidates in order of preference, the last one guaranteed.

A candidate that rests on a library product is used only if the load-time check shows, on the
shapes that the model really calls it with, that a row's bits do not depend on its company.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tensorfold.core.ops import SPECS, Ops


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One implementation of an op. `library` ones must pass the load-time check.

    `unrounded` is the same sums left in float32, where `call` rounds them to a narrower format:
    several ranks each have a part of a sum that one rounds whole. `follows` tells what the order of
    a product's sums follows of its weight's columns and inner size, where it is not one always.
    """

    label: str
    call: Callable[..., Any]
    library: bool = False
    unrounded: Callable[..., Any] | None = None
    follows: Callable[[int, int], object] | None = None


Candidates = Mapping[str, Sequence[Candidate]]


def complete(candidates: Candidates) -> None:
    names = {spec.name for spec in SPECS}
    assert set(candidates) == names, names ^ set(candidates)
    for name, choices in candidates.items():
        assert choices, name
        assert not choices[-1].library, f"{name} has no guaranteed form"


def table(chosen: Mapping[str, Callable[..., Any]]) -> Ops:
    return Ops(**{spec.name: chosen[spec.name] for spec in SPECS})


@dataclass(frozen=True, slots=True)
class Call:
    """One distinct call of an op that a model made: its name and arguments."""

    name: str
    args: tuple[Any, ...]


def shape_key(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(arg.shape) if isinstance(arg, Tensor) else arg for arg in args)


def recording(
    candidates: Candidates, calls: dict[tuple[Any, ...], Call], volatile: Collection[int]
) -> Ops:
    """A table of first candidates that notes each distinct call, by name and shapes, of the ops
    that a library product may serve: the others have nothing to be checked.

    `volatile` holds the storage addresses of buffers that later calls write: they are copied, so
    that a check sees them as the op did.
    """

    def kept(arg: Any) -> Any:
        if isinstance(arg, Tensor) and arg.untyped_storage().data_ptr() in volatile:
            return arg.clone()
        return arg

    def recorder(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            key = (name, *shape_key(args))
            if key not in calls:
                calls[key] = Call(name, tuple(kept(arg) for arg in args))
            return call(*args)

        return run

    return table(
        {
            name: recorder(name, choices[0].call) if choices[0].library else choices[0].call
            for name, choices in candidates.items()
        }
    )
