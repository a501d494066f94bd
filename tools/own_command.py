"""How a program of TensorFold starts another: as it was started itself, installed or not."""

from __future__ import annotations

import sys


def own_command(module: str) -> tuple[str, ...]:
    """The command line that runs a module of this very package."""
    spec = sys.modules["tensorfold"].__spec__
    origin = (spec.origin if spec is not None else None) or ""
    # Only a checkout that was attached has a file that attaches it.
    attached = (origin,) if origin.endswith("uninstalled.py") else ()
    return (sys.executable, *attached, "-m", module)
