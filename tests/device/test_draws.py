"""Tokens drawn on a GPU are those drawn on the CPU, alone and among other rows, over vocabularies
of the releases and of odd sizes."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tensorfold.backends.cuda_triton.table import candidates
from tests.drawing import check_draws, preferred


@pytest.mark.parametrize("size", [1, 160, 1000, 4099, 129_280, 154_880])
@torch.inference_mode()
def test_rows_draw_the_tokens_of_the_reference_in_any_company(size: int) -> None:
    check_draws(preferred(candidates()), torch.device("cuda", 0), size, rows=16)
