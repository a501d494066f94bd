"""Rows drawn on another backend's ops, against those of the reference."""

from __future__ import annotations

import torch

from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.engine import optable, sampling
from tensorfold.core.engine.optable import Candidates
from tensorfold.core.engine.sampling import Draw
from tensorfold.core.engine_api import Sampling
from tensorfold.core.ops import Ops

HOWS = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=40, top_p=0.9),
    Sampling(temperature=1.3, top_p=0.95),
    Sampling(temperature=0.9, min_p=0.02),
)
# Of float32 log-probabilities, summed in different orders.
CLOSE = 5e-6


def preferred(found: Candidates) -> Ops:
    """The first form of every op."""
    return optable.table({name: forms[0].call for name, forms in found.items()})


REFERENCE = preferred(candidates())


def check_draws(ops: Ops, device: torch.device, size: int, rows: int) -> None:
    """Tokens are those of the reference; tokens and log-probabilities those of the row alone."""
    generator = torch.Generator().manual_seed(size)
    logits_SV = torch.randn(rows, size, generator=generator) * 4
    here_SV = logits_SV.to(device)
    token_S, most = torch.arange(rows, device=device) % size, min(5, size)
    for turn in range(len(HOWS)):
        draws = [
            Draw(
                sampling=HOWS[(row + turn) % len(HOWS)], seed=7 * row - 3, position=100 * turn + row
            )
            for row in range(rows)
        ]
        found = sampling.draw(ops, here_SV, draws)
        assert found == sampling.draw(REFERENCE, logits_SV, draws), turn
        for row in range(rows):
            alone = sampling.draw(ops, here_SV[row : row + 1].clone(), [draws[row]])
            assert alone == [found[row]], (turn, row)
    together = sampling.tell(ops, here_SV, token_S, most)
    wanted = sampling.tell(REFERENCE, logits_SV, token_S.cpu(), most)
    assert torch.equal(together.id_TN.cpu(), wanted.id_TN)
    assert float((together.logprob_T.cpu() - wanted.logprob_T).abs().max()) <= CLOSE
    for row in range(rows):
        alone_1 = sampling.tell(ops, here_SV[row : row + 1].clone(), token_S[row : row + 1], most)
        for part, own in zip(together, alone_1, strict=True):
            assert torch.equal(part[row], own[0]), row
