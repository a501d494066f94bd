"""Whether indexes that ranks split give the bytes of whole ones.

    python -m tensorfold.tools.split_check [DIR|NAME] [--ranks 2,3] [--backend NAME] [--scaled]

Prompts run with their indexes whole, shared by cost and shared by rows, at each number of ranks:
alone, with every row read, resumed in the middle of a share, and two in turns with others packed
amid them. Compared, on every rank, are the first token, the next window's logits and tokens, and
every byte of the streams' state. Prints a line a case, and exits with 1 on a difference or when
nothing was shared. It starts its ranks itself; under torchrun each process is one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from tensorfold.core.backend_api import EngineOrder, Place
from tensorfold.core.engine.ranks import ready
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.core.settings import Settings, read
from tensorfold.plugins.choose import choose_backend
from tensorfold.plugins.manager import discover
from tensorfold.tools.arguments import Parser, exit_code, numbers
from tensorfold.tools.launch import given_place, kept, launched, leave, tether, told
from tensorfold.tools.models import Served, find_model
from tensorfold.tools.own_command import own_command
from tensorfold.tools.split_scenes import (
    FULL,
    LANES,
    SCALED,
    WINDOW,
    Case,
    Sizes,
    check,
    refuse_small,
)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    return exit_code("split_check", lambda: run(parse(given), given, os.environ))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="split_check", description=__doc__)
    parser.add_argument("model", nargs="?", default="", metavar="DIR|NAME")
    parser.add_argument("--backend", default="cpu-reference", help="[cpu-reference]")
    parser.add_argument("--ranks", type=numbers, default="2,3", help="numbers of ranks [2,3]")
    parser.add_argument("--scaled", action="store_true", help=f"small: {words(SCALED)}")
    parser.add_argument("--prompts", type=numbers, help=f"rows of each {words(FULL)}")
    parser.add_argument("--chunk-rows", type=int, help="rows of a chunk")
    parser.add_argument("--position", type=int, help="chunks from there on are split")
    parser.add_argument("--numerics", default="", help="the model's arithmetic")
    parser.add_argument("--dtype", default="", help="of weights and rows")
    parser.add_argument("--eager", action="store_true", help="nothing compiled or captured")
    parser.add_argument("--cache-dir", default="", help="for compiled artifacts")
    return parser.parse_args(arguments)


def words(sizes: Sizes) -> str:
    return (
        f"[{','.join(map(str, sizes.prompts))} in chunks of {sizes.chunk} from {sizes.position} on]"
    )


def sizes_of(options: argparse.Namespace) -> Sizes:
    """Raises `StartError` where a scene would have nothing to split."""
    base = SCALED if options.scaled else FULL
    sizes = Sizes(
        chunk=base.chunk if options.chunk_rows is None else options.chunk_rows,
        position=base.position if options.position is None else options.position,
        prompts=tuple(options.prompts or base.prompts),
    )
    refuse_small(sizes)
    return sizes


def run(options: argparse.Namespace, arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    sizes = sizes_of(options)
    for count in options.ranks:
        if count < 2:
            raise StartError(f"--ranks has {count}: an index is split between two at least")
    place = given_place(environ)
    if place is not None:
        if place.share.ranks not in options.ranks:
            raise StartError(f"--ranks has no {place.share.ranks}, which are there")
        tether(environ)
        with told("split_check", environ, leave):
            return checked(options, sizes, place, lambda: None, leave)
    if len(options.ranks) > 1:
        # An engine's process is of one number of ranks; of flags the last one counts.
        command = [*own_command("tensorfold.tools.split_check"), *arguments, "--ranks"]
        return max(abs(subprocess.call([*command, str(count)])) for count in options.ranks)
    # What can be refused is refused before other ranks are started.
    model_of(options, settings_of(options, sizes, options.ranks[0]))
    with (
        launched(options.ranks[0]) as launch,
        told("split_check", environ, launch.left, launch.why),
    ):
        return checked(options, sizes, launch.place, launch.met.set, launch.left)


def settings_of(options: argparse.Namespace, sizes: Sizes, ranks: int) -> Settings:
    flags = {
        "backend": options.backend,
        "ranks": ranks,
        "lanes": LANES,
        "context": sizes.context,
        "chunk_rows": sizes.chunk,
        "window_rows": WINDOW,
        "drafts": 0,
        "copies": False,
        "numerics": options.numerics,
        "dtype": options.dtype,
        "eager": options.eager,
        "cache_dir": options.cache_dir,
    }
    return read(flags, {})


def model_of(options: argparse.Namespace, settings: Settings) -> Served:
    """Raises `StartError` where ranks have nothing to split."""
    installed = discover()
    model = find_model(installed, choose_backend(installed, settings.backend), options.model)
    if model.family is None or not model.family.index_split:
        raise StartError(f"{model.name} has no index that ranks split")
    return model


def checked(
    options: argparse.Namespace,
    sizes: Sizes,
    place: Place,
    met: Callable[[], None],
    left: Callable[[int], int] = kept,
) -> int:
    """One rank's part; `met` is told once all ranks are there, `left` ends it. Rank 0 prints."""
    ranks = place.share.ranks
    settings = settings_of(options, sizes, ranks)
    model = model_of(options, settings)
    backend = choose_backend(discover(), settings.backend)
    order = EngineOrder(settings=settings, folder=model.folder, family=model.family, place=place)
    engine = backend.engine(order)
    ready(engine)
    met()
    assert isinstance(engine, TorchEngine), engine

    def report(case: Case) -> None:
        if place.share.rank == 0:
            print(f"{model.name}, {ranks} ranks, {case.words()}", flush=True)

    cases = check(engine, sizes, report)
    held = sum(not case.broken for case in cases)
    if place.share.rank == 0:
        print(f"{model.name} on {backend.name}, {ranks} ranks: {held} of {len(cases)} cases hold")
    return left(0 if cases and held == len(cases) else 1)


if __name__ == "__main__":
    sys.exit(main())
