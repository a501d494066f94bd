"""What ranks compare before they serve: a difference refuses to start, and is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from tensorfold.core.engine.group import Group
from tensorfold.core.errors import StartError, in_words
from tensorfold.core.settings import Settings, switches
from tensorfold.core.version import VERSION

Result = TypeVar("Result")

# Where a rank keeps what it reads is its own affair.
OWN = ("cache_dir", "tables")
# What the engine is made for, and whether it times rounds, among settings of rank 0's host.
MORE = ("drafts", "copies", "drafters")


def settings_of(settings: Settings) -> dict[str, Any]:
    """What must be alike before anything is loaded: versions, and the engine's settings."""
    found: dict[str, Any] = {"version": VERSION, "torch": torch.__version__}
    for name, (entry, _) in switches().items():
        if (entry.group == "engine" or name in MORE) and name not in OWN:
            found["--" + name.replace("_", "-")] = getattr(settings, name)
    return found


def compare(group: Group | None, facts: Mapping[str, Any]) -> None:
    """Raise `StartError` on every rank where any fact differs from rank 0's, naming the first."""
    if group is None:
        return
    for rank, other in enumerate(told(group, facts)):
        if rank == 0:
            first = other
            continue
        for name in sorted({*first, *other}):
            if first.get(name) != other.get(name):
                raise StartError(
                    f"rank {rank} has {name} {other.get(name)!r}, and rank 0 has "
                    f"{first.get(name)!r}: ranks of one engine must be alike"
                )


def told(group: Group, value: Any) -> list[Any]:
    """What every rank says, in rank order."""
    return [json.loads(said) for said in group.exchange(json.dumps(value).encode())]


def together(group: Group | None, work: Callable[[], Result]) -> Result:
    """Work that one rank may be refused at, or fail in: then every rank is, with its words."""
    if group is None:
        return work()
    own: Exception | None = None
    why = None
    try:
        result = work()
    except StartError as error:
        own, why = error, str(error)
    except Exception as error:
        own, why = error, in_words(error)
    for rank, words in enumerate(told(group, why)):
        if words is not None and rank != group.share.rank:
            own = own or StartError(f"rank {rank}: {words}")
    if own is not None:
        raise own
    return result


def all_hold(group: Group | None, held: bool) -> bool:
    """Whether it holds on every rank."""
    return held if group is None else all(told(group, held))
