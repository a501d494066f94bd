"""Runs the op contract: one SUMMARY line a backend; the exit status tells whether all held.

A backend that cannot run on this machine says why in its line and does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorfold.core.errors import StartError
from tensorfold.plugins.choose import choose_backend, list_backends, standing
from tensorfold.plugins.manager import discover
from tensorfold.tools.arguments import Parser


def report(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="tensorfold check", description=__doc__)
    parser.add_argument(
        "--backend", default="", metavar="NAME", help="only this one; else all that can run here"
    )
    name = parser.parse_args(arguments).backend
    installed = discover()
    if name:
        chosen = [choose_backend(installed, name)]
    else:
        chosen = [offer.value for _, offer in sorted(installed.backends.items())]
    lacking = [standing(backend) for backend in chosen]
    if None not in lacking:
        raise StartError(f"no backend can run here ({list_backends(installed)})")
    held = True
    for backend, why in zip(chosen, lacking, strict=True):
        if why is None:
            held = backend.check(report) and held
        else:
            report(f"SUMMARY {backend.name}: not run, since {why}")
    return 0 if held else 1
