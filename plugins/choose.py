"""Who is used: pure selection by name, which refuses by listing what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorfold.core.backend_api import Backend
from tensorfold.core.drafter_api import HostDrafter
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import Family
from tensorfold.plugins.manager import PLUGIN_ERRORS, Installed, in_words


def standing(backend: Backend) -> str | None:
    """Why a backend cannot run on this machine; none when it can."""
    try:
        return backend.unusable()
    except PLUGIN_ERRORS as error:
        return f"it failed to say whether it can run ({in_words(error)})"


def choose_backend(installed: Installed, name: str) -> Backend:
    """The backend of that name. Raises `StartError` where it is absent or cannot run here."""
    if name in installed.backend_clashes:
        raise StartError(clash("backend", name, installed.backend_clashes[name]))
    if name not in installed.backends:
        raise StartError(absent("backend", name, installed, list_backends(installed)))
    backend = installed.backends[name].value
    why = standing(backend)
    if why is not None:
        raise StartError(
            f"backend {name!r} cannot run here: {why.rstrip('.')} ({list_backends(installed)})"
        )
    return backend


def choose_family(installed: Installed, model_type: str) -> Family:
    """The family that serves a checkpoint's `model_type`. Raises `StartError` where none does."""
    if model_type in installed.type_clashes:
        raise StartError(clash("model_type", model_type, installed.type_clashes[model_type]))
    for offer in installed.families.values():
        if model_type in offer.value.model_types:
            return offer.value
    raise StartError(
        f"no family serves model_type {model_type!r} ({list_families(installed)}"
        f"{list_failures(installed)})"
    )


def choose_drafters(installed: Installed, names: Sequence[str]) -> list[HostDrafter]:
    """The drafters of those names. Raises `StartError` where one is absent, or named twice."""
    for name in names:
        if names.count(name) > 1:
            raise StartError(f"drafter {name!r} is named twice")
        if name in installed.drafter_clashes:
            raise StartError(clash("drafter", name, installed.drafter_clashes[name]))
        if name not in installed.drafters:
            raise StartError(absent("drafter", name, installed, list_drafters(installed)))
    return [installed.drafters[name].value for name in names]


def clash(kind: str, name: str, plugins: tuple[str, ...]) -> str:
    claimants = ", ".join(plugins)
    return f"{kind} {name!r} is claimed by several plugins ({claimants}): remove all but one"


def absent(kind: str, name: str, installed: Installed, listing: str) -> str:
    """Why there is no such thing: its plugin failed, or nobody brings it."""
    for failure in installed.failures:
        if failure.plugin.replace("_", "-") == name:
            return f"{kind} {name!r} cannot be used: its plugin failed ({failure.reason})"
    return f"there is no {kind} {name!r} ({listing}{list_failures(installed)})"


def list_backends(installed: Installed) -> str:
    entries = [
        f"{name}: {standing(offer.value) or 'usable'}"
        for name, offer in sorted(installed.backends.items())
    ]
    return listed("backends here", entries + list_clashes(installed.backend_clashes))


def list_families(installed: Installed) -> str:
    entries = [
        f"{name}: {' and '.join(offer.value.model_types)}"
        for name, offer in sorted(installed.families.items())
    ]
    return listed("families here", entries + list_clashes(installed.family_clashes))


def list_drafters(installed: Installed) -> str:
    entries = sorted(installed.drafters) + list_clashes(installed.drafter_clashes)
    return listed("drafters here", entries)


def list_clashes(clashes: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [f"{name}: claimed by {' and '.join(plugins)}" for name, plugins in clashes.items()]


def list_failures(installed: Installed) -> str:
    if not installed.failures:
        return ""
    return "; " + listed("failed plugins", [f"{f.plugin}: {f.reason}" for f in installed.failures])


def listed(what: str, entries: list[str]) -> str:
    return f"{what}: {', '.join(entries)}" if entries else f"no {what}"
