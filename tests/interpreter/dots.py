"""Products of tiles under Triton's interpreter, which takes the place of tensor cores."""

from __future__ import annotations

from typing import Any


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
