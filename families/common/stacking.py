"""Weights of many experts as one tensor, without holding them twice."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def stacked(numbers: range, one: Callable[[int], Tensor]) -> Tensor:
    """[count, ...] of what `one` gives for each number, which is let go once it is copied."""
    first = one(numbers[0])
    whole = first.new_empty(len(numbers), *first.shape)
    whole[0] = first
    for place, number in enumerate(numbers[1:], start=1):
        whole[place] = one(number)
    return whole
