"""The ops that read what other rows left, by context, at the released models' sizes.

    python -m tensorfold.tools.bench_memory [--ops NAME,...] [--format bfloat16] [--output FILE]

Beside `bench_ops`, which goes by rows: rounds and prompts at short and long contexts, windows that
are run again, indexes that publish candidates or keep to them. A floor is the bytes that a call
must move over the copy rate, or its operations over the rate of a bfloat16 product, whichever is
longer; both rates are measured in the same run, and what is counted is in `memory_calls.py`. Times
are medians of replayed graphs that turn through calls of their own operands, so that no cache holds
what a call reads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tensorfold.core.errors import StartError
from tensorfold.plugins.choose import choose_backend
from tensorfold.plugins.manager import discover
from tensorfold.tools.arguments import Parser, exit_code
from tensorfold.tools.bench_ops import bound, measure_rates, timed
from tensorfold.tools.memory_calls import Maker, OpCall, calls

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Bytes of operands that a graph turns through: several times any cache, and what they may take.
TURNED, ROOM = 200e6, 16e9
# A call that moves or computes this much finds nothing of itself in a cache.
LARGE_BYTES, LARGE_OPERATIONS = 150e6, 2e11


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Microseconds of a call and of its floor."""

    op: str
    name: str
    us: float
    floor: float
    moved: int
    operations: int


def operands_of(call: OpCall) -> list[tuple[Any, ...]]:
    made = [call.make()]
    if call.moved > LARGE_BYTES or call.operations > LARGE_OPERATIONS:
        return made
    size = sum(x.nbytes for x in made[0] if isinstance(x, Tensor))
    turns = min(24, int(TURNED / call.moved), int(ROOM / size))
    return made + [call.make() for _ in range(turns - 1)]


def figures(names: Sequence[str], maker: Maker) -> list[Figure]:
    from tensorfold.backends.cuda_triton.table import BY_MEMORY

    if strange := sorted(set(names) - set(BY_MEMORY)):
        raise StartError(f"--ops names {', '.join(strange)}; there are {', '.join(BY_MEMORY)}")
    rates = measure_rates(maker.device)
    found = []
    for call in calls(maker):
        if names and call.op not in names:
            continue
        us = timed([bound(BY_MEMORY[call.op], args) for args in operands_of(call)])
        floor = max(call.moved / rates.copy, call.operations / rates.matrix) * 1e6
        found.append(
            Figure(
                op=call.op,
                name=call.name,
                us=us,
                floor=floor,
                moved=call.moved,
                operations=call.operations,
            )
        )
    return found


def show(found: Sequence[Figure]) -> None:
    table = Table("op", "call", "us", "floor us", "ratio", "TB/s", "TFLOP/s")
    for one in found:
        numbers = (one.us, one.floor, one.us / one.floor)
        speeds = (one.moved / one.us / 1e6, one.operations / one.us / 1e6)
        table.add_row(
            one.op, one.name, *(f"{x:.1f}" for x in numbers), *(f"{x:.2f}" for x in speeds)
        )
    Console(width=120).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="bench_memory", description=__doc__)
    parser.add_argument("--ops", default="", help="names with commas; all of them")
    parser.add_argument("--format", choices=sorted(FORMATS), default="bfloat16")
    parser.add_argument("--output", type=Path, help="JSON of the figures")
    return exit_code("bench_memory", lambda: run(parser.parse_args(arguments)))


def run(asked: argparse.Namespace) -> int:
    choose_backend(discover(), "cuda-triton")
    names = [name for name in asked.ops.split(",") if name]
    with torch.no_grad():
        found = figures(names, Maker(torch.device("cuda"), FORMATS[asked.format]))
    show(found)
    if asked.output:
        asked.output.write_text(json.dumps([asdict(one) for one in found], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
