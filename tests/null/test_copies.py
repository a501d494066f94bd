"""Copies: what followed the same tokens before, by the rule as it is written."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfold.core import copies
from tensorfold.core.copies import LEAST, MOST_COMPARED, STEP, TRIED, Copies, StreamCopies
from tensorfold.core.drafter_api import Guesses


def asked(drafter: StreamCopies, context: Sequence[int], most: int = 7) -> Guesses:
    """What it proposes after it had time for this context."""
    drafter.rest(context)
    return drafter.propose(context, most)


def by_the_rule(context: Sequence[int], most: int) -> list[int]:
    """The rule by brute force, for a context whose match was not followed from before."""
    last = len(context)
    ends = [
        end
        for end in range(last - 1, LEAST - 1, -1)
        if list(context[end - LEAST : end]) == list(context[last - LEAST :])
    ][:TRIED]

    def length(end: int) -> int:
        count = LEAST
        while count < MOST_COMPARED and count < end:
            if context[end - count - 1] != context[last - count - 1]:
                break
            count += 1
        return count

    if last <= LEAST or not ends:
        return []
    best = max(ends, key=lambda end: (length(end), end))
    copied = list(context[best : best + most])
    while len(copied) < most:
        copied.append(copied[len(copied) - (last - best)])
    return copied


@settings(max_examples=600, deadline=None, derandomize=True, database=None)
@given(
    context=st.one_of(
        st.lists(st.integers(0, 1), min_size=1, max_size=120),
        st.lists(st.integers(0, 3), min_size=1, max_size=40).map(lambda part: part * 5),
        st.lists(
            st.sampled_from([(1, 2, 3, 4, 5, 6, 7, 8, 9), (3,), (7, 8), (200_000, 5, 1)]),
            min_size=1,
            max_size=25,
        ).map(lambda parts: [token for part in parts for token in part]),
    ),
    most=st.integers(1, 9),
)
def test_a_context_never_seen_before_is_copied_from_by_the_rule(
    context: list[int], most: int
) -> None:
    drafter = Copies().begin()
    found = asked(drafter, context, most)
    assert list(found.tokens) == by_the_rule(context, most)
    assert len(found.chances) == len(found.tokens)
    assert all(0.0 < chance < 1.0 for chance in found.chances)


def test_seven_equal_tokens_are_no_match_and_eight_are() -> None:
    def context(count: int) -> list[int]:
        words = list(range(10, 10 + count))
        return [1, *words, 50, 51, 52, 2, *words]

    assert asked(Copies().begin(), context(7)) == ((), ())
    assert list(asked(Copies().begin(), context(8)).tokens[:3]) == [50, 51, 52]


def test_the_longest_match_counts_and_of_equals_the_most_recent() -> None:
    end = list(range(20, 28))
    longer, other = [7, *end, 90], [3, *end, 91]
    assert asked(Copies().begin(), [*longer, *other, 7, *end], 1).tokens == [90]
    assert asked(Copies().begin(), [*longer, *other, 5, *end], 1).tokens == [91]


def test_a_match_is_followed_while_it_is_right_and_gets_surer() -> None:
    text = [*range(100, 140)]
    drafter = Copies().begin()
    context = [*text, 1, *text[:8]]
    first = asked(drafter, context, 3)
    assert list(first.tokens) == text[8:11]
    # What came is what it said and one more: it goes on without time to search.
    context += text[8:12]
    second = drafter.propose(context, 3)
    assert list(second.tokens) == text[12:15]
    assert second.chances[0] > first.chances[-1]
    context += [text[12], 55]
    assert drafter.propose(context, 3) == ((), ())


def test_a_loop_is_copied_as_a_loop() -> None:
    drafter = Copies().begin()
    context = [1, 2, 3] * 4
    assert list(asked(drafter, context, 7).tokens) == [1, 2, 3, 1, 2, 3, 1]


def test_a_long_prompt_is_indexed_a_step_at_a_time_and_then_copied_from() -> None:
    end = list(range(1000, 1010))
    context = [*end, 77, *(row * row % 907 for row in range(3 * STEP)), *end]
    drafter = Copies().begin()
    for _ in range(3):
        assert asked(drafter, context, 2) == ((), ())
        assert len(drafter.earlier) <= 3 * STEP
    assert list(asked(drafter, context, 2).tokens[:1]) == [77]


def test_the_index_takes_a_few_bytes_a_token() -> None:
    drafter = Copies().begin()
    context: list[int] = []
    for _ in range(200):
        context += [row * 31 % 997 for row in range(len(context), len(context) + 90)]
        drafter.rest(context)
    while len(drafter.earlier) < len(drafter.tokens):
        drafter.rest(context)
    arrays = (drafter.tokens, drafter.earlier, drafter.heads)
    held = sum(part.buffer_info()[1] * part.itemsize for part in arrays)
    assert held <= 16 * len(context)
    assert len(drafter.heads) <= 2 * len(context)


def test_chances_are_labels_that_rise_with_the_match() -> None:
    labels = copies.LABELS[LEAST:]
    assert list(labels) == sorted(labels)
    assert 0.6 < labels[0] < labels[-1] < 1.0
