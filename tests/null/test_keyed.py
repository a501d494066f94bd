"""Sampling noise is a function of (seed, position, token), the same everywhere."""

import hashlib
import math
from fractions import Fraction

import pytest

from tensorfold.core import keyed

TABLE = [
    (0, 0, 0, "-0x1.4c77e6291bf80p-4"),
    (1, 17, 96, "0x1.e028f20d4f184p-2"),
    (-5, 4096, 154879, "0x1.78896638a03b4p-1"),
    (2**63 - 1, 1, 2, "0x1.c1f9ca6635a80p-3"),
]
# splitmix64 seeded with 1234567, as published with its reference implementation.
SPLITMIX = (
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
)


def test_mix_is_the_published_splitmix64() -> None:
    outputs = [keyed.mix(1234567 + step * keyed.STEP) for step in range(1, 6)]
    assert tuple(outputs) == SPLITMIX
    assert keyed.mix(keyed.STEP) == 0xE220A8397B1DCDAF


def test_mix_reads_64_bits_of_any_integer() -> None:
    assert keyed.mix(-1) == keyed.mix(keyed.MASK)
    assert keyed.mix(1 << 64) == keyed.mix(0) == 0


@pytest.mark.parametrize("seed", [0, 1, -1, 7, 2**63 - 1, -(2**63)])
def test_keys_tell_seeds_positions_and_tokens_apart(seed: int) -> None:
    keys = {keyed.row_key(near, position) for near in (seed, seed ^ 1) for position in range(500)}
    assert len(keys) == 1000
    key = keyed.row_key(seed, 3)
    assert len({keyed.token_bits(key, token) for token in range(5000)}) == 5000


def test_a_table_of_values_stays_as_it_is() -> None:
    for seed, position, token, value in TABLE:
        assert keyed.gumbel(keyed.row_key(seed, position), token).hex() == value


def test_log_is_right_to_the_last_bits() -> None:
    values = [2.0**-53, 1.0 - 2.0**-53, 0.5, 1.0, 1.0 + 2.0**-52, 36.7, 1e300, 2.3e-308]
    values += [keyed.SQRT_HALF * (1 + step * 1e-3) for step in range(-500, 900, 7)]
    for value in values:
        right = math.log(value)
        assert abs(keyed.log(value) - right) <= 4 * math.ulp(right)


def test_the_uniform_under_a_gumbel_lies_strictly_inside_0_and_1() -> None:
    for bits in (0, 1, (1 << 52) - 1):
        uniform = (bits + 0.5) * 2.0**-52
        assert Fraction(uniform) == (Fraction(bits) + Fraction(1, 2)) / 2**52
        assert 0.0 < uniform < 1.0
        assert math.isfinite(-keyed.log(-keyed.log(uniform)))


def test_gumbel_noise_has_its_mean_and_spread() -> None:
    draws = [
        keyed.gumbel(keyed.row_key(11, row), token) for row in range(50) for token in range(97)
    ]
    mean = math.fsum(draws) / len(draws)
    spread = math.fsum((draw - mean) ** 2 for draw in draws) / len(draws)
    assert abs(mean - 0.57722) < 0.06
    assert abs(spread - math.pi**2 / 6) < 0.12


def test_the_highest_score_draws_each_token_as_often_as_its_probability() -> None:
    logits = (0.0, 1.0, 2.0)
    counts = [0, 0, 0]
    for position in range(6000):
        key = keyed.row_key(5, position)
        scores = [logit + keyed.gumbel(key, token) for token, logit in enumerate(logits)]
        counts[scores.index(max(scores))] += 1
    total = math.fsum(math.exp(logit) for logit in logits)
    for count, logit in zip(counts, logits, strict=True):
        assert abs(count / 6000 - math.exp(logit) / total) < 0.03


def test_a_seed_of_a_prompt_is_a_signed_64_bit_integer_and_repeats() -> None:
    seeds = [keyed.derived_seed(prompt) for prompt in (b"1,2", b"1,2", b"12", b"2,1", b"")]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 4
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("seed", [0, 42, -1, 2**63 - 1, -(2**63)])
def test_siblings_differ_by_their_index_alone(seed: int) -> None:
    seeds = [keyed.sibling_seed(seed, index) for index in range(64)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 64
    assert all(-(2**63) <= sibling < 2**63 for sibling in seeds)


def test_the_hash_of_a_reply_is_over_ids_joined_by_commas() -> None:
    assert keyed.token_sha256((1, 20, 300)) == hashlib.sha256(b"1,20,300").hexdigest()
    assert keyed.token_sha256(()) == hashlib.sha256(b"").hexdigest()
