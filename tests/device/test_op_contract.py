"""The op contract on the GPU, for every form of every op."""

from __future__ import annotations

from tensorfold.backends.cuda_triton.backend import check


def test_every_op_of_this_backend_has_a_sound_form() -> None:
    lines: list[str] = []
    assert check(lines.append), "\n".join(lines)
