"""What ranks put into one another's memory is added in rank order by the ops' tree, each turn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import exchange
from tensorfold.core.ops.linear_parts import tree

# How far the ranks that are told of are ahead of every turn of this test.
AHEAD = 1 << 20
# Turns before the first: none, and as many as one number can count but two.
BEFORE = (0, 2**31 - 3)


def wrapped(number: int) -> int:
    """As 32 bits hold it."""
    return (number + 2**31) % 2**32 - 2**31


def by_program(flags: Tensor, ranks: int) -> Tensor:
    return flags.view(exchange.PROGRAMS, ranks)


def addresses(*tensors: Tensor) -> Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("before", BEFORE)
def test_a_rank_adds_its_part_to_the_others_in_the_tree(
    ranks: int, dtype: torch.dtype, before: int
) -> None:
    rank = ranks // 2
    words, told = exchange.buffer_words(ranks)
    buffers = [torch.full((words,), float("nan")) for _ in range(ranks)]
    flags = [torch.zeros(told, dtype=torch.int32) for _ in range(ranks)]
    turns = torch.full((exchange.PROGRAMS,), before, dtype=torch.int32)
    gone = torch.zeros(1, dtype=torch.int32)
    halves = buffers[rank].view(2, ranks, exchange.PROGRAMS, exchange.BLOCK)
    waited = by_program(flags[rank], ranks)
    waited[:] = wrapped(before + AHEAD)
    waited[:, rank] = before
    generator = torch.Generator().manual_seed(ranks)
    for turn, shape in enumerate([(3, 7), (1, 2500), (1, 2500), (3, 7)]):
        parts = torch.randn(ranks, *shape, generator=generator)
        size = parts[0].numel()
        for other in range(ranks):
            # Programs have had different numbers of turns: others' parts lie in both halves.
            flat = halves[:, other].view(2, -1)
            flat[:, :size] = parts[other].flatten() if other != rank else float("nan")
        found = exchange.total(
            parts[rank], dtype, addresses(*buffers), addresses(*flags), addresses(gone), turns, rank
        )
        assert torch.equal(found, tree(parts).to(dtype))
        # Every other rank has been given the part, and told which turn it is of.
        for other in range(ranks):
            theirs = buffers[other].view(2, ranks, -1, exchange.BLOCK)[:, rank]
            given = torch.cat([theirs[turns[n] & 1, n] for n in range(-(-size // exchange.BLOCK))])
            assert torch.equal(given[:size], parts[rank].flatten())
            assert by_program(flags[other], ranks)[0, rank] == wrapped(before + turn + 1)
    # A program counts the turns that it took part in.
    assert turns[:3].tolist() == [wrapped(before + taken) for taken in (4, 2, 2)]


@pytest.mark.parametrize("before", BEFORE)
def test_nobody_is_waited_for_once_they_are_gone(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setattr(exchange, "LOOKS", 10)
    words, told = exchange.buffer_words(2)
    buffers = [torch.zeros(words) for _ in range(2)]
    flags = [torch.full((told,), before, dtype=torch.int32) for _ in range(2)]
    turns = torch.full((exchange.PROGRAMS,), before, dtype=torch.int32)
    gone = torch.ones(1, dtype=torch.int32)
    part = torch.ones(5000)
    for _ in range(5):
        exchange.total(
            part, part.dtype, addresses(*buffers), addresses(*flags), addresses(gone), turns, 0
        )
    assert turns[0] == wrapped(before + 5)


def test_what_is_larger_than_the_buffer_is_left_to_others() -> None:
    most = exchange.PROGRAMS * exchange.BLOCK
    assert exchange.fits(torch.empty(most))
    assert not exchange.fits(torch.empty(most + 1))
    assert not exchange.fits(torch.empty(0))
