"""What one rank holds of a model: contiguous runs of equal units, so that sums keep their tree.

A dimension that ranks cut has eight units, as `linear_parts` has eight parts; or, where it is
smaller and divides eight (a few heads), as many units as it counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorfold.core.errors import StartError

UNITS = 8
# Counts of ranks at which every sum is the tree of one rank, so that the bits are the same.
SAME_BITS = (1, 2, 4, 8)
# For all ranks to come to where they meet: hosts may start minutes apart.
MEET_SECONDS = 300.0
# How ranks cut routed experts: each holds some of them whole, or some of the inner width of all.
IDS, WIDTH = "ids", "width"


def units(size: int) -> int:
    """How many equal units a dimension is cut in; 1 where it cannot be cut."""
    if size % UNITS == 0:
        return UNITS
    return size if UNITS % size == 0 else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The part of rank `rank` of `ranks`; one rank holds everything."""

    rank: int = 0
    ranks: int = 1

    def run(self, count: int) -> tuple[int, int]:
        """Which of `count` units this rank holds: from the first up to the second."""
        return count * self.rank // self.ranks, count * (self.rank + 1) // self.ranks

    def bounds(self, size: int, name: str) -> tuple[int, int]:
        """The run of a dimension that this rank holds.

        Raises `StartError`, naming the dimension, where it has fewer units than there are ranks.
        """
        count = units(size)
        if self.ranks > count:
            pieces = f"can be cut in {count} parts" if count > 1 else "cannot be cut"
            raise StartError(f"--ranks is {self.ranks}, and {name} of {size} {pieces}")
        first, last = self.run(count)
        return first * size // count, last * size // count

    def size(self, size: int, name: str) -> int:
        """How much of a dimension this rank holds; as `bounds`."""
        first, last = self.bounds(size, name)
        return last - first

    def parts(self, size: int, of: int, name: str) -> int:
        """How many of `linear_parts`' parts a run of `size` of an inner dimension `of` is.

        Raises `StartError` where the dimension has one part and there are several ranks.
        """
        if of % UNITS:
            if self.ranks > 1:
                raise StartError(
                    f"--ranks is {self.ranks}, and {name} of {of} has no {UNITS} equal parts"
                )
            return 1
        return UNITS * size // of
