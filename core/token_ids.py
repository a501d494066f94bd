"""Token ids by the million: what is asked or made of a long prompt, with no step for each of them.

A prompt is checked, hashed and sent to other ranks before a device can begin with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

# Ids whose text is made at once: what is made of them meanwhile stays near the processor.
BLOCK = 1 << 14
# From this many on.
MANY = 64
ZERO, COMMA = ord("0"), ord(",")


def as_words(ids: Sequence[int]) -> np.ndarray | None:
    """Integers as uint32 [N]; none where one of them is none."""
    try:
        words = array("I", ids)
    except OverflowError:
        return None
    return np.frombuffer(words, np.uintc).astype(np.uint32, copy=False)


def all_below(ids: Sequence[int], size: int) -> bool:
    """Whether integers are all from 0 on and below `size`, at most 2 ** 32."""
    words = as_words(ids)
    return words is not None and (not len(words) or int(words.max()) < size)


def decimals(ids: Sequence[int]) -> bytes:
    """Integers in decimal, joined by commas."""
    words = as_words(ids) if len(ids) >= MANY else None
    if words is None:
        return ",".join(map(str, ids)).encode()
    blocks = [in_decimal(words[first : first + BLOCK]) for first in range(0, len(words), BLOCK)]
    return b"".join(blocks)[:-1]


def in_decimal(words: np.ndarray) -> bytes:
    """Each with a comma after it: a digit a column from the last on, with nothing before the
    first one."""
    width = len(str(int(words.max())))
    text_NW = np.zeros((len(words), width + 1), np.uint8)
    text_NW[:, width] = COMMA
    for place in reversed(range(width)):
        rest = words // 10
        digits = words - 10 * rest + ZERO
        text_NW[:, place] = digits if place == width - 1 else np.where(words > 0, digits, 0)
        words = rest
    return text_NW.tobytes().translate(None, b"\0")
