"""Kernels under Triton's interpreter, on the CPU: sums in float32, of rows that are mostly so too.

The interpreter must be chosen before triton is imported, so these files run in processes of their
own: `tests/cpu/test_triton.py` starts one a file. By hand:

    TRITON_INTERPRET=1 python -m pytest tests/interpreter
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.interpreter.dots import in_order

collect_ignore_glob: list[str] = []
if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob.append("test_*.py")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    import torch

    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True, scope="session")
def _dots_in_order() -> Iterator[None]:
    from triton.runtime.interpreter import InterpreterBuilder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", in_order)
        yield
