"""A row draws the same token and has the same log-probabilities in any company, whatever the
vocabulary's size: rows of odd sizes lie at odd places in memory."""

from __future__ import annotations

import pytest
import torch

from tensorfold.core.engine import sampling
from tensorfold.core.engine.sampling import Draw
from tensorfold.core.engine_api import Sampling
from tensorfold.core.ops import running_sums
from tensorfold.core.ops.exp_sums import halved_sums
from tests.drawing import REFERENCE

ROWS = 9
SIZES = (1, 2, 3, 5, 17, 97, 101, 160, 163, 1000, 4096, 4099, 4416, 40_001)
HOW = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=40, top_p=0.9),
    Sampling(temperature=1.3, top_p=0.5, min_p=0.02),
)


@pytest.mark.parametrize("size", SIZES)
def test_a_row_has_its_tokens_and_log_probabilities_in_any_company(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    logits_SV = torch.randn(ROWS, size, generator=generator) * 4
    most = min(5, size)
    for row in range(ROWS):
        alone_V = logits_SV[row].clone()
        token = row % size
        wanted = sampling.logprobs(REFERENCE, alone_V, token, most)
        assert sampling.logprobs(REFERENCE, logits_SV[row], token, most) == wanted
    for how in HOW:
        draws = [Draw(sampling=how, seed=row - 4, position=7 * row) for row in range(ROWS)]
        alone = [
            sampling.draw(REFERENCE, logits_SV[row : row + 1].clone(), [draws[row]])[0]
            for row in range(ROWS)
        ]
        for count in range(1, ROWS + 1):
            assert sampling.draw(REFERENCE, logits_SV[:count], draws[:count]) == alone[:count]
        mixed = [Draw(sampling=HOW[row % 4], seed=row, position=row) for row in range(ROWS)]
        together = sampling.draw(REFERENCE, logits_SV, mixed)
        for row in range(ROWS):
            own = sampling.draw(REFERENCE, logits_SV[row : row + 1].clone(), [mixed[row]])
            assert own == [together[row]]


@pytest.mark.parametrize("size", SIZES)
def test_the_ops_sums_have_a_rows_bits_in_any_company_and_are_sums(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x_SV = torch.rand(ROWS, size, generator=generator, dtype=torch.float64)
    whole_S, begun_SV = halved_sums(x_SV), running_sums.reference(x_SV)
    for count in range(1, ROWS + 1):
        assert torch.equal(halved_sums(x_SV[:count]), whole_S[:count])
        assert torch.equal(running_sums.reference(x_SV[:count]), begun_SV[:count])
    torch.testing.assert_close(whole_S, x_SV.sum(-1), rtol=1e-13, atol=0)
    torch.testing.assert_close(begun_SV, x_SV.cumsum(-1), rtol=1e-13, atol=0)
    head = (size + 1) // 2
    assert torch.equal(running_sums.reference(x_SV[:, :head]), begun_SV[:, :head])


@pytest.mark.parametrize("size", SIZES)
def test_rows_told_together_are_told_as_alone(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    logits_TV = torch.randn(ROWS, size, generator=generator) * 4
    token_T, most = torch.arange(ROWS) % size, min(5, size)
    together = sampling.tell(REFERENCE, logits_TV, token_T, most)
    for row in range(ROWS):
        alone = sampling.tell(
            REFERENCE, logits_TV[row : row + 1].clone(), token_T[row : row + 1], most
        )
        for part, own in zip(together, alone, strict=True):
            assert torch.equal(part[row], own[0])
