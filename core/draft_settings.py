"""What drafts a process makes, out of the settings."""

from __future__ import annotations

from tensorfold.core.copies import Copies
from tensorfold.core.errors import StartError
from tensorfold.core.settings import Settings


def drafter_names(settings: Settings) -> list[str]:
    """The host's drafters by name, in order. Raises `StartError` where the flags contradict."""
    names = [name.strip() for name in settings.drafters.split(",")] if settings.drafters else []
    if "" in names:
        raise StartError(f"--drafters is {settings.drafters!r}: one of its names is empty")
    if settings.copies:
        return names if Copies.name in names else [Copies.name, *names]
    if Copies.name in names:
        raise StartError(f"--drafters names {Copies.name}, and --no-copies refuses it")
    return names


def head_drafts(settings: Settings, suit: int) -> int:
    """Most drafts of the model's own head a stream and round, where `suit` suit the checkpoint.

    Raises `StartError` where there is no head, or no window holds them.
    """
    rows = settings.window_rows
    if settings.drafts < 0:
        return min(suit, rows - 1)
    if settings.drafts >= rows:
        raise StartError(
            f"--drafts is {settings.drafts}, and a window of --window-rows {rows} holds at most "
            f"{rows - 1}"
        )
    if settings.drafts and not suit:
        raise StartError(f"--drafts is {settings.drafts}, and this checkpoint has no draft layer")
    return settings.drafts
