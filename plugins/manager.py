"""Finds what is installed, one plugin at a time, and remembers what is wrong with the rest.

Nothing a plugin does at its import or in its hooks stops the others. Its failure is kept under its
name and told when it, or something it was to bring, is chosen.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import pluggy

from tensorfold.core.backend_api import Backend
from tensorfold.core.drafter_api import HostDrafter
from tensorfold.core.family_api import Family
from tensorfold.plugins import hookspecs

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def parts_of(seam: type) -> tuple[str, ...]:
    """What a protocol asks for, in the order in which it is written."""
    named = dict.fromkeys((*seam.__annotations__, *vars(seam)))
    return tuple(name for name in named if not name.startswith("_"))


BACKEND_PARTS = parts_of(Backend)
DRAFTER_PARTS = parts_of(HostDrafter)
FAMILY_PARTS = parts_of(Family)

# What a plugin may raise that must not stop the others; an interrupt still does.
PLUGIN_ERRORS = (Exception, SystemExit)

Kind = TypeVar("Kind")


class Source(NamedTuple):
    """A plugin before it is loaded: its name, and what loads it."""

    name: str
    load: Callable[[], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer(Generic[Kind]):
    """A backend, a family or a drafter, and the plugin that brings it."""

    plugin: str
    value: Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What is wrong with a plugin, in words."""

    plugin: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """What the plugins of this machine bring, by name.

    The `..._clashes` hold names (and config.json `model_type`s) that several plugins claim; none of
    those is among the usable ones.
    """

    backends: Mapping[str, Offer[Backend]] = field(default_factory=dict)
    families: Mapping[str, Offer[Family]] = field(default_factory=dict)
    drafters: Mapping[str, Offer[HostDrafter]] = field(default_factory=dict)
    failures: Sequence[Failure] = ()
    backend_clashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    family_clashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    type_clashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drafter_clashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def sources() -> list[Source]:
    """Every plugin that is installed. A checkout's own are those of its `pyproject.toml`."""
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    found = list(entry_points(group=hookspecs.PROJECT))
    if project.is_file():
        others = [e for e in found if e.dist is None or e.dist.name != hookspecs.PROJECT]
        found = declared(project) + others
    return [Source(entry.name, entry.load) for entry in found]


def declared(project: Path) -> list[EntryPoint]:
    """The plugins that a `pyproject.toml` declares."""
    table = tomllib.loads(project.read_text())["project"]["entry-points"][hookspecs.PROJECT]
    return [EntryPoint(name, value, hookspecs.PROJECT) for name, value in table.items()]


def discover(found: Iterable[Source] | None = None) -> Installed:
    """Load the plugins one by one, and call each one's hooks by itself."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    failures: list[Failure] = []
    backends: list[Offer[Backend]] = []
    families: list[Offer[Family]] = []
    drafters: list[Offer[HostDrafter]] = []
    for source in sources() if found is None else found:
        try:
            register(manager, source)
            backends += offers(manager, source.name, "register_backends", BACKEND_PARTS)
            families += offers(manager, source.name, "register_families", FAMILY_PARTS)
            drafters += offers(manager, source.name, "register_drafters", DRAFTER_PARTS)
        except PLUGIN_ERRORS as error:
            failures.append(Failure(plugin=source.name, reason=in_words(error)))
    usable_backends, backend_clashes = by_name(backends)
    usable_families, family_clashes = by_name(families)
    usable_drafters, drafter_clashes = by_name(drafters)
    return Installed(
        backends=usable_backends,
        families=usable_families,
        drafters=usable_drafters,
        failures=tuple(failures),
        backend_clashes=backend_clashes,
        family_clashes=family_clashes,
        drafter_clashes=drafter_clashes,
        type_clashes=claimed_twice(
            (model_type, offer) for offer in families for model_type in offer.value.model_types
        ),
    )


class PluginError(Exception):
    """A plugin that loads but breaks the seam's rules."""


def register(manager: pluggy.PluginManager, source: Source) -> None:
    """Load a plugin and take it in, unless it implements a hook that is not on the menu."""
    if manager.has_plugin(source.name):
        raise PluginError(f"two plugins are named {source.name!r}")
    plugin = source.load()
    manager.register(plugin, name=source.name)
    callers = manager.get_hookcallers(plugin) or []
    unknown = [caller.name for caller in callers if not caller.has_spec()]
    try:
        manager.check_pending()
    except pluggy.PluginValidationError:
        manager.unregister(plugin)
        raise PluginError(f"it implements unknown hooks: {', '.join(unknown)}") from None
    if not callers:
        raise PluginError("it implements no hook")


def offers(
    manager: pluggy.PluginManager, plugin: str, hook: str, parts: Sequence[str]
) -> list[Offer[Any]]:
    """What one plugin returns from one hook, checked."""
    others = [each for name, each in manager.list_name_plugin() if name != plugin]
    caller = manager.subset_hook_caller(hook, others)
    if not caller.get_hookimpls():
        return []
    returned = caller()
    if len(returned) != 1 or not isinstance(returned[0], list | tuple):
        raise PluginError(f"{hook} must return a list")
    for value in returned[0]:
        check_offer(value, hook, parts)
    return [Offer(plugin=plugin, value=value) for value in returned[0]]


def check_offer(value: Any, hook: str, parts: Sequence[str]) -> None:
    lacking = [part for part in parts if not hasattr(value, part)]
    if lacking:
        raise PluginError(f"{hook} returned {value!r}, which has no {', '.join(lacking)}")
    if not isinstance(value.name, str) or not NAME.fullmatch(value.name):
        raise PluginError(
            f"{hook} returned the name {value.name!r}: a name is lower-case words and digits "
            "joined by dashes"
        )
    types = value.model_types if "model_types" in parts else ()
    if not isinstance(types, tuple) or not all(isinstance(each, str) for each in types):
        raise PluginError(f"{hook} returned model_types {types!r}: they are a tuple of strings")


def by_name(
    offered: Sequence[Offer[Any]],
) -> tuple[dict[str, Offer[Any]], dict[str, tuple[str, ...]]]:
    """Offers by name, and the names that are claimed more than once (by which plugins)."""
    clashes = claimed_twice((offer.value.name, offer) for offer in offered)
    usable = {o.value.name: o for o in offered if o.value.name not in clashes}
    return usable, clashes


def claimed_twice(claims: Iterable[tuple[str, Offer[Any]]]) -> dict[str, tuple[str, ...]]:
    claimants: dict[str, list[str]] = {}
    for name, offer in claims:
        claimants.setdefault(name, []).append(offer.plugin)
    return {name: tuple(plugins) for name, plugins in claimants.items() if len(plugins) > 1}


def in_words(error: BaseException) -> str:
    """An exception in one line: a seam error is words already, others say their kind."""
    text = " ".join(str(error).split())
    if isinstance(error, PluginError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
