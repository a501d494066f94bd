"""The op contract on the GPU, for every form of every op."""

from __future__ import annotations

import pytest

from tensorfold.backends.cuda_triton.backend import check


# Every kernel is compiled in both formats, where no earlier run left it.
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("contract")
def test_every_op_of_this_backend_has_a_sound_form() -> None:
    lines: list[str] = []
    assert check(lines.append), "\n".join(lines)
