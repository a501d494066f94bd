"""A tool's command line: flags in full, values checked, and a mistake told in one sentence."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from tensorfold.core.errors import StartError


class Parser(argparse.ArgumentParser):
    """As argparse's, but a mistake is a `StartError`, no flag may be cut short, and a description
    is shown as it was written."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise StartError(f"{message} ({self.prog} --help tells more)")


def at_least(least: int) -> Callable[[str], int]:
    """An argument's `type`: a whole number from `least` on."""

    def count(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
        if found < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {found}")
        return found

    return count


positive = at_least(1)


def seconds(text: str) -> float:
    """An argument's `type`: a time to wait, more than 0 and as long as a wait can be."""
    try:
        time = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}") from None
    if not 0 < time <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(
            f"must be more than 0 and at most {threading.TIMEOUT_MAX:g} seconds, not {text!r}"
        )
    return time


def numbers(text: str) -> list[int]:
    """An argument's `type`: whole numbers from 1 on, joined by commas."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"must be positive numbers with commas, not {text!r}")
    return found


def exit_code(tool: str, run: Callable[[], int]) -> int:
    """What a tool that is started by itself ends with: its own code, or 2 where it was refused,
    told in one sentence under its name."""
    try:
        return run()
    except StartError as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return 2
