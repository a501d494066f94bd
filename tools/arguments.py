"""A tool's command line: flags in full, and a mistake told in one sentence."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from tensorfold.core.errors import StartError


class Parser(argparse.ArgumentParser):
    """As argparse's, but a mistake is a `StartError` and no flag may be cut short."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise StartError(f"{message} ({self.prog} --help tells more)")
