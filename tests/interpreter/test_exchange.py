"""What ranks put into one another's memory is added in rank order by the ops' tree, each turn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import exchange
from tensorfold.core.ops.linear_parts import tree

# Told by ranks that are ahead of every turn of this test.
AHEAD = 1 << 20


def addresses(*tensors: Tensor) -> Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_rank_adds_its_part_to_the_others_in_the_tree(ranks: int, dtype: torch.dtype) -> None:
    rank = ranks // 2
    words, told = exchange.buffer_words(ranks)
    buffers = [torch.full((words,), float("nan")) for _ in range(ranks)]
    flags = [torch.zeros(told, dtype=torch.int32) for _ in range(ranks)]
    turns = torch.zeros(exchange.PROGRAMS, dtype=torch.int32)
    halves = buffers[rank].view(2, ranks, exchange.PROGRAMS, exchange.BLOCK)
    waited = flags[rank].view(exchange.PROGRAMS, ranks)
    waited[:] = AHEAD
    waited[:, rank] = 0
    generator = torch.Generator().manual_seed(ranks)
    for turn, shape in enumerate([(3, 7), (1, 2500), (1, 2500), (3, 7)]):
        parts = torch.randn(ranks, *shape, generator=generator)
        size = parts[0].numel()
        for other in range(ranks):
            # Programs have had different numbers of turns: others' parts lie in both halves.
            flat = halves[:, other].view(2, -1)
            flat[:, :size] = parts[other].flatten() if other != rank else float("nan")
        found = exchange.total(
            parts[rank], dtype, addresses(*buffers), addresses(*flags), turns, rank
        )
        assert torch.equal(found, tree(parts).to(dtype))
        # Every other rank has been given the part, and told which turn it is of.
        for other in range(ranks):
            theirs = buffers[other].view(2, ranks, -1, exchange.BLOCK)[:, rank]
            given = torch.cat([theirs[turns[n] % 2, n] for n in range(-(-size // exchange.BLOCK))])
            assert torch.equal(given[:size], parts[rank].flatten())
            assert flags[other].view(-1, ranks)[0, rank] == turn + 1
    # A program counts the turns that it took part in.
    assert turns[:3].tolist() == [4, 2, 2]


def test_what_is_larger_than_the_buffer_is_left_to_others() -> None:
    most = exchange.PROGRAMS * exchange.BLOCK
    assert exchange.fits(torch.empty(most))
    assert not exchange.fits(torch.empty(most + 1))
    assert not exchange.fits(torch.empty(0))
