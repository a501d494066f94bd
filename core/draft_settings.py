"""What drafts a process makes, out of the settings."""

from __future__ import annotations

from tensorfold.core.copies import Copies
from tensorfold.core.errors import StartError
from tensorfold.core.settings import Settings


def drafter_names(settings: Settings) -> list[str]:
    """The host's drafters by name, in order. Raises `StartError` where the flags contradict."""
    names = [name.strip() for name in settings.drafters.split(",") if name.strip()]
    if settings.copies:
        return names if Copies.name in names else [Copies.name, *names]
    if Copies.name in names:
        raise StartError(f"--drafters names {Copies.name}, and --no-copies refuses it")
    return names
