"""The primes of the Engram tables' columns (spec dsv41, 2.2)."""

from __future__ import annotations

from math import isqrt


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))


def engram_primes(
    layers: int, orders: int, heads: int, start: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """By layer, n-gram order and head: the smallest unused prime, from `start` on in each order.

    Heads of one order ascend; a prime is used once in the whole model.
    """
    used: set[int] = set()
    found = []
    for _ in range(layers):
        by_order = []
        for _ in range(orders):
            current, row = start - 1, []
            for _ in range(heads):
                current += 1
                while current in used or not is_prime(current):
                    current += 1
                used.add(current)
                row.append(current)
            by_order.append(tuple(row))
        found.append(tuple(by_order))
    return tuple(found)
