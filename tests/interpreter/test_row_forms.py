"""What follows the number of rows, or how work is cut, gives a row the same bits: forms that the
ops' own cases are too small for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tensorfold.backends.cuda_triton.kernels import add_picks, hc_mix, kda_blocks, short_conv
from tensorfold.backends.cuda_triton.kernels.add_picks import sum_picks
from tensorfold.backends.cuda_triton.kernels.products import each, summed
from tensorfold.backends.cuda_triton.kernels.tiles import Weight, apart, joined
from tensorfold.core.engine.contract_check import poisoned
from tensorfold.core.ops import short_conv as convolution
from tensorfold.core.ops.linear_parts import tree

BF16, F32 = torch.bfloat16, torch.float32
NAN = float("nan")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def weights(parts: int, kind: torch.dtype) -> list[Weight]:
    """The same parts of [100, 70], lying by K and by N."""
    w = normal(70, parts, 100).to(kind)
    return [joined(w.flatten(1), parts), apart(w.permute(1, 2, 0))]


@pytest.mark.parametrize("kinds", [(BF16, F32), (F32, BF16)], ids=["wide weight", "wide rows"])
@pytest.mark.parametrize("parts", [1, 3])
def test_products_of_two_formats_have_the_same_bits_above_and_below_64_rows(
    kinds: tuple[torch.dtype, torch.dtype], parts: int
) -> None:
    x = normal(70, parts * 100).to(kinds[0])
    for weight in weights(parts, kinds[1]):
        with poisoned():
            whole = summed(x, weight)
            heads = each(x.view(70, parts, 100), weight)
        wanted = x.double() @ normal(70, parts, 100).to(kinds[1]).double().flatten(1).T
        assert float((whole - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())
        for first, last in ((0, 1), (3, 12), (5, 35), (6, 70), (4, 69)):
            part = x[first:last]
            assert torch.equal(summed(part, weight), whole[first:last]), (first, last)
            found = each(part.reshape(-1, parts, 100), weight)
            assert torch.equal(found, heads[first:last]), (first, last)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8])
def test_picks_are_summed_in_the_ops_order_however_columns_are_cut(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, held, size = 4, 16, 1100
    ids = torch.rand(7, 24, generator=torch.Generator().manual_seed(1)).argsort(-1)[:, :6]
    ids = ids.sort(-1).values
    ids[2], ids[3] = -1, torch.arange(first, first + 6)
    out = normal(42, size)
    absent = (ids < first) | (ids >= first + held)
    out[absent.flatten()] = NAN
    sums = torch.zeros(parts, 7, size)
    for row in range(7):
        for pick in range(6):
            if not absent[row, pick]:
                own = int(ids[row, pick] - first) * parts // held
                sums[own, row] += out[6 * row + pick]
    for few_rows in (0, 128):
        monkeypatch.setattr(add_picks, "FEW_ROWS", few_rows)
        found = torch.full((7, size), NAN)
        sum_picks(out, ids, found, first, held, parts)
        assert torch.equal(found, tree(sums)), few_rows


@pytest.mark.parametrize("channels", [20, 300])
def test_a_convolution_has_the_same_bits_wherever_its_rows_come_from(channels: int) -> None:
    """Of two streams in many rows: tiles that reach into the history, and tiles that do not."""
    history, wider = normal(3, 3, channels), normal(70, channels + 12)
    wider[:, channels:] = NAN
    u, taps = wider[:, :channels], normal(channels, 4)
    row = torch.arange(70)[:, None]
    place, late = row + torch.arange(-3, 1), row >= 37
    begin, lane = torch.where(late, 37, 0), torch.where(late, 1, 0)
    source = torch.where(place < begin, 3 * lane + 3 + place - begin, 9 + place)
    history[2] = NAN
    with poisoned():
        found = short_conv.short_conv(u, history, source, taps)
    wanted = convolution.reference(u.double(), history.double(), source, taps.double())
    assert float((found - wanted).abs().max()) <= 5e-6
    # The same rows one by one and a few at once, all they need lying in the history.
    every = torch.cat([history.flatten(0, 1), u])[None]
    for first, last in ((0, 1), (2, 9), (15, 31), (36, 41), (20, 70)):
        part = short_conv.short_conv(u[first:last], every, source[first:last], taps)
        assert torch.equal(part, found[first:last]), (first, last)


@pytest.mark.parametrize("kind", [F32, BF16], ids=["fp32", "bf16"])
def test_streams_are_mixed_alike_by_programs_of_few_and_of_many_rows(
    kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, fn = normal(5, 4, 600).to(kind), normal(24, 2400) / 49
    args = (fn, normal(24), normal(3), 1e-5, 1e-6, 3, True)
    few = hc_mix.mixed(x, *args)
    monkeypatch.setattr(hc_mix, "MANY_ROWS", 2)
    monkeypatch.setattr(hc_mix, "FEW", 0)
    with poisoned():
        assert all(map(torch.equal, hc_mix.mixed(x, *args), few))
        part = hc_mix.mixed(x[1:4], *args)
    assert all(torch.equal(found, one[1:4]) for found, one in zip(part, few, strict=True))


def test_blocks_by_slices_of_keys_and_values_are_blocks_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> tuple[Tensor, Tensor]:
        q, k, v = (normal(70 + seed, 2, 40)[seed:] / 6 for seed in range(3))
        state = normal(1, 2, 40, 40)
        index = torch.arange(128).clamp(max=70).view(2, 64)
        gate, beta = -normal(70, 2, 40).abs(), normal(70, 2).sigmoid()
        lane = torch.zeros(2, dtype=torch.int64)
        with poisoned():
            return kda_blocks.kda_blocks(q, k, v, gate, beta, index, lane, state), state

    for name in ("SLICE", "SOLVED", "COLUMNS"):
        monkeypatch.setattr(kda_blocks, name, 64)
    whole, whole_state = run()
    for name in ("SLICE", "SOLVED", "COLUMNS"):
        monkeypatch.setattr(kda_blocks, name, 16)
    found, state = run()
    assert bool(torch.isfinite(whole).all())
    assert torch.equal(found, whole)
    assert torch.equal(state, whole_state)
