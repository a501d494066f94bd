"""The MTP layer: cut on the grid, packed or whole, its rows have the same bits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.state import allocate
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.families.glm53.draft import Mtp
from tensorfold.families.glm53.model import Glm53
from tensorfold.families.glm53.plugin import FAMILY
from tests.cpu.driving import GRID, same_state, some_tokens


@torch.inference_mode()
def drafted(
    engine: TorchEngine, forwards: Sequence[Sequence[tuple[int, int, int]]], lengths: Sequence[int]
) -> list[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Each stream's hidden rows, logits and state after forwards of (stream, start, end)."""
    model = engine.model
    assert isinstance(model, Glm53)
    spec = FAMILY.state_spec(model.config, window_rows=8, drafts=True)
    context = engine.info.context
    storage = allocate(
        spec, lanes=len(lengths), context=context, kept_bytes=0, device=torch.device("cpu")
    )
    seats = [storage.claim(length) for length in lengths]
    layer = Mtp(model.config, model.weights, model.ops, storage.buffers)
    tokens = [some_tokens(length, seed=length) for length in lengths]
    size = model.config.hidden_size
    hidden = [
        torch.randn(length, size, generator=torch.Generator().manual_seed(length))
        for length in lengths
    ]
    found: list[list[Tensor]] = [[] for _ in lengths]
    for pieces in forwards:
        runs = [batch.Run(tokens[who][a:b], seats[who].lane, a) for who, a, b in pieces]
        rows = batch.build(runs, storage, prompt=True, tile=engine.tile, context=context)
        given = torch.zeros(len(rows.ids_R), size)
        given[: sum(b - a for _, a, b in pieces)] = torch.cat(
            [hidden[who][a:b] for who, a, b in pieces]
        )
        out = layer.forward(rows, given)
        counts = [b - a for _, a, b in pieces]
        for (who, _, _), part in zip(pieces, out[: sum(counts)].split(counts), strict=True):
            found[who].append(part)
    results = []
    for who, length in enumerate(lengths):
        out = torch.cat(found[who])
        state = stream_state(storage, seats[who], length)
        own = {name: part for name, part in state.items() if name.endswith(".6")}
        assert len(own) == 3
        results.append((out, engine.model.logits(out), own))
    return results


@pytest.mark.parametrize("name", ["engine", "wide"])
@pytest.mark.parametrize("length", [1, 64, 65, 150, 256, 300])
def test_pieces_on_the_grid_equal_the_whole_bit_for_bit(
    name: str, length: int, request: pytest.FixtureRequest
) -> None:
    engine = request.getfixturevalue(name)
    (whole,) = drafted(engine, [[(0, 0, length)]], [length])
    cuts = [*range(0, length, GRID), length]
    pieces = [[(0, a, b)] for a, b in itertools.pairwise(cuts)]
    (cut,) = drafted(engine, pieces, [length])
    assert torch.equal(cut[0], whole[0])
    assert torch.equal(cut[1], whole[1])
    assert same_state(cut[2], whole[2])


def test_rows_of_a_pack_equal_the_rows_alone(engine: TorchEngine) -> None:
    lengths = [5, 130, 66]
    packed = drafted(engine, [[(1, 0, 64), (0, 0, 5)], [(2, 0, 66), (1, 64, 130)]], lengths)
    for length, found in zip(lengths, packed, strict=True):
        (wanted,) = drafted(engine, [[(0, 0, length)]], [length])
        assert torch.equal(found[0], wanted[0]), length
        assert same_state(found[2], wanted[2]), length


def test_the_embedding_of_the_first_position_is_not_looked_at(engine: TorchEngine) -> None:
    model = engine.model
    assert isinstance(model, Glm53)
    (first,) = drafted(engine, [[(0, 0, 3)]], [3])
    row = model.weights.embed[some_tokens(3, seed=3)[0]]
    before = row.clone()
    with torch.inference_mode():
        row.add_(1.0)
        (second,) = drafted(engine, [[(0, 0, 3)]], [3])
        row.copy_(before)
    assert torch.equal(first[0], second[0])
