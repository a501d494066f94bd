"""Drawing a token equals its definition, token by token in Python, over awkward rows."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from torch import Tensor

from tensorfold.core import keyed
from tensorfold.core.engine import sampling
from tensorfold.core.engine.sampling import Cuts, Draw
from tensorfold.core.engine_api import Sampling
from tests.drawing import REFERENCE


def defined(logits: list[float], one: Draw) -> int:
    """The definition (`engine_api.Sampling`), every token scored."""
    ids = range(len(logits))
    if one.mask is not None:
        ids = [token for token in ids if one.mask[token // 8] >> (token % 8) & 1]
    order = sorted(ids, key=lambda token: (-logits[token], token))
    if one.sampling.temperature == 0:
        return order[0]
    if one.sampling.top_k > 0:
        order = order[: one.sampling.top_k]
    scaled = {token: logits[token] / one.sampling.temperature for token in order}
    weights = {token: math.exp(scaled[token] - scaled[order[0]]) for token in order}
    if one.sampling.top_p < 1:
        total, reached, kept = sum(weights.values()), 0.0, []
        for token in order:
            if reached >= one.sampling.top_p * total:
                break
            kept.append(token)
            reached += weights[token]
        order = kept
    order = [token for token in order if weights[token] >= one.sampling.min_p]
    key = keyed.row_key(one.seed, one.position)
    best = max(scaled[token] + keyed.gumbel(key, token) for token in order)
    return min(token for token in order if scaled[token] + keyed.gumbel(key, token) == best)


def some_logits(kind: str, size: int, generator: torch.Generator) -> Tensor:
    logits = torch.randn(size, generator=generator) * 3
    if kind == "ties":
        return (logits / 2).round()
    if kind == "flat":
        return torch.zeros(size)
    if kind == "peak":
        logits[size // 2] = 60.0
    if kind == "huge":
        return logits * 1e30
    if kind == "holes":
        logits[torch.rand(size, generator=generator) < 0.5] = float("-inf")
        logits[size // 3] = 0.0
    return logits


def some_sampling(choice: random.Random) -> Sampling:
    return Sampling(
        temperature=choice.choice([0.0, 1e-6, 0.01, 0.5, 1.0, 1.0, 2.0, 1e6]),
        top_k=choice.choice([0, 0, 1, 2, 7, 50, 10**9]),
        top_p=choice.choice([1.0, 1.0, 1e-9, 0.3, 0.5, 0.9, 0.999999]),
        min_p=choice.choice([0.0, 0.0, 1e-6, 0.1, 0.5, 1.0]),
    )


def some_mask(size: int, choice: random.Random) -> bytes | None:
    if choice.random() < 0.6:
        return None
    bits = [choice.random() < 0.3 for _ in range(size)]
    bits[size // 3] = True
    packed = sum(1 << place for place, bit in enumerate(bits) if bit)
    return packed.to_bytes(-(-size // 8), "little")


@pytest.mark.parametrize("kind", ["plain", "ties", "flat", "peak", "huge", "holes"])
@pytest.mark.parametrize("size", [1, 2, 9, 160, 600])
def test_a_draw_equals_its_definition(kind: str, size: int) -> None:
    generator, choice = torch.Generator().manual_seed(size), random.Random(kind + str(size))
    for batch in range(6 if size > 200 else 12):
        rows = choice.randint(1, 9)
        logits = torch.stack([some_logits(kind, size, generator) for _ in range(rows)])
        draws = [
            Draw(
                sampling=some_sampling(choice),
                seed=choice.choice([0, -1, 2**63 - 1, -(2**63), choice.getrandbits(40)]),
                position=choice.choice([0, 1, 500_000, choice.randrange(10_000)]),
                mask=some_mask(size, choice),
            )
            for _ in range(rows)
        ]
        before = logits.clone()
        found = sampling.draw(REFERENCE, logits, draws)
        assert torch.equal(logits, before), "the logits were written"
        wanted = [defined(row, one) for row, one in zip(logits.tolist(), draws, strict=True)]
        assert found == wanted, (batch, draws)
        for row, one in enumerate(draws):
            assert sampling.draw(REFERENCE, logits[row : row + 1], [one]) == [found[row]]


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-300, 1e-60])
@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.9}, {"top_k": 5, "min_p": 0.1}])
def test_a_vanishing_temperature_draws_the_highest_logit(
    temperature: float, cuts: dict[str, float]
) -> None:
    logits = torch.randn(8, 160, generator=torch.Generator().manual_seed(2)) * 4
    logits[3:] -= 50.0
    one = Draw(sampling=Sampling(temperature=temperature, **cuts), seed=1, position=2)
    assert sampling.draw(REFERENCE, logits, [one] * 8) == logits.argmax(-1).tolist()


def test_equal_logits_go_to_the_lowest_id_without_a_temperature() -> None:
    logits = torch.zeros(3, 160)
    logits[1, 40:90] = 5.0
    logits[2, 159] = logits[2, 158] = 1.0
    draws = [Draw(sampling=Sampling(), seed=row, position=row) for row in range(3)]
    assert sampling.draw(REFERENCE, logits, draws) == [0, 40, 158]


def kept(logits: Tensor, one: Sampling, head: int = 10**9) -> list[int]:
    """The tokens that the cuts leave of one row; the row must be sure of them."""
    cuts = Cuts(
        torch.tensor([0]),
        torch.tensor([one.top_k]),
        torch.tensor([one.top_p], dtype=torch.float64),
        torch.tensor([one.min_p], dtype=torch.float64),
    )
    found = sampling.cut(
        REFERENCE, logits[None], logits.double()[None], cuts, min(head, len(logits))
    )
    assert not bool(found.beyond_N), head
    return torch.isfinite(found.scaled_NV[0]).nonzero()[:, 0].tolist()


def test_top_k_takes_the_lowest_ids_of_a_tie() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    for head in (3, 4, 6):
        assert kept(logits, Sampling(top_k=3), head) == [1, 2, 3]


def test_a_negative_zero_ties_with_zero() -> None:
    logits = torch.tensor([-0.0, 0.0, -0.0, 0.0, -1.0])
    assert kept(logits, Sampling(top_k=3)) == [0, 1, 2]


def test_the_token_that_crosses_top_p_stays_and_the_next_goes() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    for top_p, wanted in ((0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.874, 3), (0.88, 4)):
        assert kept(logits, Sampling(top_p=top_p)) == list(range(wanted)), top_p


def test_a_cut_beyond_the_head_is_told_and_one_inside_is_exact() -> None:
    """A flat vocabulary of 5,000: half of the mass is 2,500 tokens, the lowest ids."""
    logits = torch.zeros(5000)
    for head in (2500, 2501, 5000):
        assert kept(logits, Sampling(top_p=0.5), head) == list(range(2500))
    for one, head in (
        (Sampling(top_p=0.5), 2499),
        (Sampling(top_k=300), 299),
        (Sampling(top_k=300, top_p=0.001), 299),
    ):
        with pytest.raises(AssertionError, match=str(head)):
            kept(logits, one, head)


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert kept(logits, Sampling(top_k=2, top_p=0.5)) == [0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 7, 159])
def test_a_row_with_one_bad_logit_is_faulty_and_its_neighbours_are_not(
    bad: float, place: int
) -> None:
    logits = torch.randn(3, 160, generator=torch.Generator().manual_seed(0))
    logits[1, place] = bad
    assert sampling.sound(logits).tolist() == [True, False, True]


def test_a_row_without_any_finite_logit_is_faulty_and_minus_infinities_are_not() -> None:
    logits = torch.zeros(2, 160)
    logits[0] = -math.inf
    logits[1, 1:] = -math.inf
    assert sampling.sound(logits).tolist() == [False, True]


@pytest.mark.parametrize("size", [1, 5, 160, 5000])
def test_log_probabilities_are_the_raw_log_softmax(size: int) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 5
    wanted = torch.log_softmax(logits.double(), -1)
    for token in {0, size // 2, size - 1}:
        found = sampling.logprobs(REFERENCE, logits, token, min(size, 20))
        assert found.token == token
        assert abs(found.logprob - float(wanted[token])) < 1e-5
        assert len(found.top) == min(size, 20)
        for alternative, logprob in found.top:
            assert abs(logprob - float(wanted[alternative])) < 1e-5
    assert sampling.logprobs(REFERENCE, logits, 0, 0).top == ()


def test_alternatives_come_best_first_and_ties_lowest_id_first() -> None:
    logits = torch.tensor([1.0, 4.0, 4.0, 0.0, 4.0, 1.0])
    top = sampling.logprobs(REFERENCE, logits, 3, 5).top
    assert [token for token, _ in top] == [1, 2, 4, 0, 5]
    assert top[0][1] == top[1][1] == top[2][1] > top[3][1] == top[4][1]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (Sampling(temperature=1.0), [0.4, 0.3, 0.2, 0.1]),
        (Sampling(temperature=1.0, top_k=2), [4 / 7, 3 / 7, 0, 0]),
        (Sampling(temperature=1.0, top_p=0.8), [4 / 9, 3 / 9, 2 / 9, 0]),
        (Sampling(temperature=0.5), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
    ],
)
def test_draws_over_many_seeds_follow_the_distribution(
    one: Sampling, expected: list[float]
) -> None:
    """Chi-square at three degrees of freedom: 16.3 is exceeded once in a thousand."""
    count = 4000
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(count, -1)
    draws = [Draw(sampling=one, seed=seed, position=seed % 7) for seed in range(count)]
    found = Counter(sampling.draw(REFERENCE, logits, draws))
    square = 0.0
    for token, chance in enumerate(expected):
        if not chance:
            assert found[token] == 0
        else:
            square += (found[token] - chance * count) ** 2 / (chance * count)
    assert square < 16.3, found


@pytest.mark.parametrize("size", [160, 4352, 4353, 64 * 69, 154_880])
@pytest.mark.parametrize("count", [1, 2, 17])
def test_the_highest_of_a_row_are_those_of_the_whole_row(size: int, count: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x = torch.stack([torch.randperm(size, generator=generator) for _ in range(3)]).double()
    # All of them in one run, and at the ends of runs.
    x[1, 7 : 7 + count] += size
    x[2, :: max(1, size // 64)] += size
    found, wanted = sampling.highest(x, count), torch.topk(x, count)
    assert torch.equal(found.value_SK, wanted.values)
    assert torch.equal(found.id_SK, wanted.indices)
