"""The real lane host over the fake engine in virtual time: what fill settings do to clients.

    python -m tensorfold.tools.simulate --scenario NAME|all [--json] [--plot FILE.png]
    python -m tensorfold.tools.simulate --trace TRACE.jsonl --plot FILE.png [--last TURNS]

Prints tables and the bars they must clear; exits with 1 when a bar is missed. A trace is what a
server writes with `--trace` or gives at `/debug/turns`; the same drawing shows it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tensorfold.core.errors import StartError
from tensorfold.tools.arguments import Parser, exit_code, positive
from tensorfold.tools.sim.arrivals import poisson
from tensorfold.tools.sim.beside import decode_beside_65k, short_beside_long
from tensorfold.tools.sim.bursts import burst_different, published_burst
from tensorfold.tools.sim.faults import faults
from tensorfold.tools.sim.presets import presets
from tensorfold.tools.sim.report import Outcome, Panel, document, show
from tensorfold.tools.sim.sizes import Sizes

SCENARIOS: Mapping[str, Callable[[Sizes], Outcome]] = {
    "published-burst": published_burst,
    "burst-different": burst_different,
    "short-beside-long": short_beside_long,
    "decode-beside-65k": decode_beside_65k,
    "poisson": poisson,
    "faults": faults,
    "presets": presets,
}
WIDTH = 150  # columns of a table where the output is no terminal


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code("simulate", lambda: run(parse(arguments)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="simulate", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--scenario", choices=(*SCENARIOS, "all"))
    chosen.add_argument("--trace", type=Path, help="draw a server's trace instead")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--plot", type=Path, help="draw the lanes over time into this PNG")
    parser.add_argument(
        "--last", type=positive, default=200, help="turns of a trace that are drawn"
    )
    parser.add_argument("--prompts", type=positive, default=Sizes().prompts, help="bursts a figure")
    parser.add_argument("--streams", type=positive, default=Sizes().streams, help="random arrivals")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    if options.trace is not None:
        return draw_trace(options)
    names = tuple(SCENARIOS) if options.scenario == "all" else (options.scenario,)
    sizes = Sizes(prompts=options.prompts, streams=options.streams)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    outcomes = []
    for name in names:
        outcomes.append(SCENARIOS[name](sizes))
        if not options.json:
            show(outcomes[-1], console)
    if options.json:
        print(json.dumps(whole_document(outcomes), indent=2))
    if options.plot is not None:
        draw([panel for outcome in outcomes for panel in outcome.panels], options.plot)
    return 0 if all(outcome.holds for outcome in outcomes) else 1


def whole_document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    if len(outcomes) == 1:
        return document(outcomes[0])
    return {
        "holds": all(outcome.holds for outcome in outcomes),
        "scenarios": {outcome.scenario: document(outcome) for outcome in outcomes},
    }


def draw_trace(options: argparse.Namespace) -> int:
    from tensorfold.tools.sim.timeline import read_trace

    if options.plot is None:
        raise StartError("--trace needs --plot FILE.png")
    turns = read_trace(options.trace)[-options.last :]
    draw([Panel(title=options.trace.name, turns=turns)], options.plot)
    return 0


def draw(panels: Sequence[Panel], path: Path) -> None:
    from tensorfold.tools.sim.drawing import save

    save(panels, path)


if __name__ == "__main__":
    sys.exit(main())
