"""Compiled forwards of a rank: what it exchanges is inside one graph a kind of sublayer, and no
request makes a graph that the start has not made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tensorfold.backends.cpu_reference.backend import device_of
from tensorfold.core.backend_api import EngineOrder, Place
from tensorfold.core.engine.agreement import Found
from tensorfold.core.engine.compile import capturing, library_ops
from tensorfold.core.engine.open_engine import Compile, open_torch_engine
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Piece, Sampling
from tensorfold.core.ops import Ops
from tensorfold.core.settings import read
from tensorfold.core.share import Share
from tests.cpu.driving import CKPT, FAMILY, Asked, begin, fill, some_tokens, step, take
from tests.cpu.ranks.echo import Echo
from tests.cpu.ranks.running import SIZES

CHUNK = 64
# Of the last chunk by cost, the first rank of three has many rows, none, one, and many.
LENGTHS = (200, 129, 130, 233)
pytestmark = pytest.mark.timeout(200)


def opened(compiled: bool, graphs: Counter[str]) -> TorchEngine:
    """The first rank of three; `graphs` counts those that are made, by kind of sublayer."""
    place = Place(share=Share(rank=0, ranks=3), host="nowhere", port=1)
    settings = read({**SIZES, "compile": compiled, "chunk_rows": CHUNK, "window_rows": 3}, {})
    order = EngineOrder(settings=settings, folder=CKPT, family=FAMILY, place=place)

    def graph(ops: Ops, ranks: int) -> tuple[Ops, Compile]:
        def compile(function: Callable[..., Any]) -> Callable[..., Any]:
            def counted(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
                graphs[function.__name__] += 1
                return graph.forward

            return capturing(function, backend=counted)

        return library_ops("tensorfold_compiled_ranks", ops, ranks), compile

    # An echo's picks are no other rank's: a chunk whose index is split has bits of its own.
    device = replace(
        device_of(order),
        graph=graph,
        connect=lambda place: Echo(place.share),
        agree=lambda *given, **sizes: Found((), ()),
    )
    return open_torch_engine(order, device)


def reply(engine: TorchEngine, length: int, how: str) -> tuple[Any, int]:
    """The proof of a reply to a prompt in chunks, of which all but the first are split; and how
    often the ranks gathered for it."""
    assert isinstance(engine.group, Echo)
    before = engine.group.gathers
    sampling = Sampling(temperature=0.9)
    asked = Asked(prompt=tuple(some_tokens(length, 3)), most=3, sampling=sampling, seed=3)
    told = begin(engine, 1, asked)
    for start in range(0, length, CHUNK):
        end = min(length, start + CHUNK)
        piece = Piece(stream=1, start=start, end=end, split=how if start else "")
        take(told, engine.fill([piece]).land()[0])
    while not told.done:
        step(engine, [told])
    engine.close(1)
    return told.proof(), engine.group.gathers - before


def others(engine: TorchEngine) -> None:
    """A prompt that is kept and resumed within a chunk and told, a pack, and windows."""
    asked = Asked(prompt=tuple(some_tokens(190, 3)), most=3)
    first = begin(engine, 1, asked, marks=(2 * CHUNK,))
    for start in range(0, 190, CHUNK):
        piece = Piece(stream=1, start=start, end=min(190, start + CHUNK), logprobs=1)
        take(first, engine.fill([replace(piece, split="cost" if start else "")]).land()[0])
    again = begin(engine, 2, asked, resume=first.saved[0])
    take(again, engine.fill([Piece(stream=2, start=2 * CHUNK, end=190, split="rows")]).land()[0])
    packed = [begin(engine, 3 + rows, replace(asked, prompt=(7,) * rows)) for rows in (1, 3, 30)]
    fill(engine, *((told, 0, len(told.asked.prompt)) for told in packed))
    step(engine, [first, again, *packed], {1: (5, 6), 4: (5,)})
    step(engine, packed[:1])


def test_a_start_makes_every_graph_and_their_bits_are_those_of_plain_ops() -> None:
    graphs: Counter[str] = Counter()
    plain, compiled = opened(False, graphs), opened(True, graphs)
    made = dict(graphs)
    for length in LENGTHS:
        gathered = []
        for how in ("", "cost", "rows"):
            found = reply(compiled, length, how)
            assert found == reply(plain, length, how), (length, how)
            gathered.append(found[1])
        assert gathered[0] < gathered[1] == gathered[2], gathered
    others(compiled)
    assert all(made.values()), made
    assert graphs == made
