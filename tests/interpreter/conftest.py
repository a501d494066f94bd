"""Kernels under Triton's interpreter, on the CPU: sums in float32, of rows that are mostly so too.

The interpreter must be chosen before triton is imported, so these files run in processes of their
own: `tests/cpu/test_triton.py` starts one a file. By hand:

    TRITON_INTERPRET=1 python -m pytest tests/interpreter
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

collect_ignore_glob: list[str] = []
if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob.append("test_*.py")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    import torch

    with torch.inference_mode():
        yield


def in_order(builder: Any, a: Any, b: Any, total: Any, precision: Any, imprecise: Any) -> Any:
    """A dot that adds along K one by one, as tensor cores keep to one order: numpy's own order
    follows the shape of the tile."""
    from triton.runtime.interpreter import TensorHandle

    left, right = in_float32(a), in_float32(b)
    assert a.data.dtype == b.data.dtype, (a.dtype, b.dtype)
    assert left.dtype == right.dtype == total.data.dtype, "the interpreter is right in float32"
    result = total.data.copy()
    for k in range(left.shape[-1]):
        result += left[..., :, k, None] * right[..., None, k, :]
    return TensorHandle(result, total.dtype.scalar)


def in_float32(x: Any) -> Any:
    """An operand's values; the interpreter holds a bfloat16 as the upper half of a float32."""
    import triton.language as tl

    if x.dtype.scalar != tl.bfloat16:
        return x.data
    return (x.data.astype("uint32") << 16).view("float32")


@pytest.fixture(autouse=True, scope="session")
def _dots_in_order() -> Iterator[None]:
    from triton.runtime.interpreter import InterpreterBuilder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", in_order)
        yield
