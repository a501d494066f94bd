"""The tensor twin of the keyed noise gives the integers' and the logarithm's bits exactly."""

from __future__ import annotations

import torch

from tensorfold.core import keyed
from tensorfold.core.ops import keyed_noise as noise

SEEDS = (0, 1, -1, 30, 31, -(2**63), 2**63 - 1, 0x9E3779B97F4A7C15 - 2**64, 123456789)
POSITIONS = (0, 1, 2, 63, 64, 4095, 2**20, 2**31 - 1, 2**40)
VOCAB = 300


def test_every_token_of_every_row_has_the_noise_of_keyed() -> None:
    ids = torch.arange(VOCAB)[None]
    for seed in SEEDS:
        keys = [keyed.row_key(seed, position) for position in POSITIONS]
        bits = noise.token_bits(torch.tensor([noise.signed(key) for key in keys]), ids)
        found = noise.gumbel(bits)
        wanted_bits = [[keyed.token_bits(key, token) for token in range(VOCAB)] for key in keys]
        wanted = [[keyed.gumbel(key, token) for token in range(VOCAB)] for key in keys]
        assert bits.tolist() == wanted_bits
        assert torch.equal(found, torch.tensor(wanted, dtype=torch.float64))


def test_large_token_ids_have_the_noise_of_keyed() -> None:
    ids = torch.arange(154_880)[None]
    key = keyed.row_key(-7, 900_000)
    bits = noise.token_bits(torch.tensor([noise.signed(key)]), ids)[0]
    for token in (0, 1, 65_535, 65_536, 154_855, 154_879):
        assert int(bits[token]) == keyed.token_bits(key, token)
        assert float(noise.gumbel(bits[token])) == keyed.gumbel(key, token)


def test_the_logarithm_has_the_bits_of_keyed_over_its_whole_range() -> None:
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(0, 2**52, (2000,), generator=generator)
    bits = torch.cat([random, torch.tensor([0, 1, 2, 2**51 - 1, 2**51, 2**52 - 2, 2**52 - 1])])
    uniform = (bits.double() + 0.5) * 2.0**-52
    inner = -noise.log(uniform)
    assert noise.log(uniform).tolist() == [keyed.log(value) for value in uniform.tolist()]
    assert noise.log(inner).tolist() == [keyed.log(value) for value in inner.tolist()]
    assert bool(torch.isfinite(noise.gumbel(bits)).all())


def test_signed_holds_every_pattern() -> None:
    for value in (0, 1, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63)):
        assert noise.signed(value) & keyed.MASK == value & keyed.MASK
        assert -(2**63) <= noise.signed(value) < 2**63


def test_shift_right_is_logical() -> None:
    for value in (-1, -(2**63), 2**63 - 1, 5, 0):
        for bits in (12, 27, 30, 31):
            shifted = int(noise.shift_right(torch.tensor(value), bits))
            assert shifted == (value & keyed.MASK) >> bits
