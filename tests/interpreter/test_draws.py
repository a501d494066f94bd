"""Tokens drawn by the kernels are those that the reference draws, alone and among other rows."""

from __future__ import annotations

import pytest
import torch

from tensorfold.backends.cuda_triton.table import candidates
from tests.drawing import check_draws, preferred


@pytest.mark.parametrize("size", [1, 3, 160, 1025, 4416])
def test_rows_draw_the_tokens_of_the_reference_in_any_company(size: int) -> None:
    check_draws(preferred(candidates()), torch.device("cpu"), size, rows=5)
