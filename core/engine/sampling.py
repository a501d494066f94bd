"""Drawing tokens and reading log-probabilities: a row's result depends on that row alone.

Sizes depend on sizes alone, never on values, and nothing here waits for a device: what a row needs
beyond `Reach` it reports as unsure, and is drawn again with everything in reach. Whatever sums over
a vocabulary has one order a width; whatever else runs over many rows at once is pointwise or
exact. Order of cuts: logit descending then id ascending, top-k, temperature, top-p (the token that
crosses p stays), min-p: what they leave is always a beginning of that order.

S rows, V vocabulary, N rows drawn with noise, C rows with cuts, M rows with masks, H sorted head,
T rows whose log-probabilities are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tensorfold.core import keyed
from tensorfold.core.engine_api import Sampling, TokenLogprob
from tensorfold.core.ops import Ops
from tensorfold.core.ops.keyed_noise import signed

# Added to an upper bound of the noise so that rounding can never exclude the best token.
SLACK = 1e-2
# Colder temperatures draw as this one does: any two different float32 logits are then further apart
# than any noise, and none of them divided by it is infinite.
COLDEST = 1e-200
# Widths of the sorted head in which cuts look for their last token: the first one of a row whose
# top-k bounds it, of any other row, and the ratio of one width to the next.
HEAD, OPEN_HEAD, GROWTH = 256, 1024, 2
# Runs of a long row that are looked at for its highest, each of so many times as many values.
RUNS, MANY = 64, 4
# Tokens whose exact score is computed, those of the highest bounds.
CANDIDATES = 16


class Reach(NamedTuple):
    """How far a draw looks: the sorted `head` of rows with cuts, and `candidates` for the best."""

    head: int
    candidates: int

    def within(self, vocab_size: int) -> Reach:
        return Reach(min(self.head, vocab_size), min(self.candidates, vocab_size))


class Noisy(NamedTuple):
    """Rows that are drawn with noise: which, their row keys, and temperatures in float64.

    Either some of a forward's rows, or all of them; then a temperature of 0 asks for none.
    """

    row_N: Tensor
    key_N: Tensor
    temperature_N: Tensor


class Cuts(NamedTuple):
    """Rows of `Noisy` with cuts: their places there; off are top_k 0, top_p 1 and min_p 0."""

    place_C: Tensor
    top_k_C: Tensor
    top_p_C: Tensor
    min_p_C: Tensor


class Drawn(NamedTuple):
    """A token a row, and whether more reach could change it (none: surely not).

    needed_S tells how much of the sorted order a row's cuts left, or that it was more than the
    head; 0 of rows without cuts, none where no row has any.
    """

    token_S: Tensor
    unsure_S: Tensor | None = None
    needed_S: Tensor | None = None


class Cut(NamedTuple):
    """Scaled logits with what the cuts take at -infinity, rows whose cut lies beyond the head, and
    how much of the sorted order was left."""

    scaled_NV: Tensor
    beyond_N: Tensor
    needed_N: Tensor


def has_cuts(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def allow(logits_SV: Tensor, row_M: Tensor, mask_MB: Tensor) -> Tensor:
    """The logits with forbidden tokens of the masked rows at -infinity; the given ones are left.

    mask_MB are bytes, little-endian bits, 1 allowed.
    """
    place_8 = torch.arange(8, device=logits_SV.device, dtype=torch.uint8)
    bit_MB8 = (mask_MB[:, :, None] >> place_8) & 1
    closed_MV = bit_MB8.flatten(1)[:, : logits_SV.shape[1]] == 0
    if row_M.shape[0] == logits_SV.shape[0]:
        return logits_SV.masked_fill(closed_MV, float("-inf"))
    masked_MV = logits_SV[row_M].masked_fill_(closed_MV, float("-inf"))
    return logits_SV.index_copy(0, row_M, masked_MV)


def sound(logits_SV: Tensor) -> Tensor:
    """Rows that can be drawn from: no NaN, no +infinity, and some finite value."""
    return torch.isfinite(logits_SV.amax(-1))


def draw_rows(
    ops: Ops, logits_SV: Tensor, noisy: Noisy | None, cuts: Cuts | None, reach: Reach
) -> Drawn:
    """One token a row; rows that are not `sound` give any."""
    greedy_S = torch.argmax(logits_SV, -1)
    if noisy is None:
        return Drawn(greedy_S)
    whole = noisy.row_N.shape[0] == logits_SV.shape[0]
    logits_NV = logits_SV if whole else logits_SV[noisy.row_N]
    found = best(ops, logits_NV, noisy, cuts, reach.within(logits_SV.shape[1]))
    assert found.unsure_S is not None
    if whole:
        warm_S = noisy.temperature_N > 0
        return found._replace(
            token_S=torch.where(warm_S, found.token_S, greedy_S), unsure_S=found.unsure_S & warm_S
        )

    def spread(part_N: Tensor) -> Tensor:
        rest_S = torch.zeros_like(greedy_S, dtype=part_N.dtype)
        return rest_S.index_copy(0, noisy.row_N, part_N)

    return Drawn(
        greedy_S.index_copy(0, noisy.row_N, found.token_S),
        spread(found.unsure_S),
        None if found.needed_S is None else spread(found.needed_S),
    )


def best(ops: Ops, logits_NV: Tensor, noisy: Noisy, cuts: Cuts | None, reach: Reach) -> Drawn:
    """The highest of logit / temperature + noise over what the cuts leave, ties to the lowest id.

    A bound that is cheap for the whole vocabulary leaves few tokens whose exact score is needed.
    The best of these is the best of all if it is above every bound beyond them; otherwise the row
    is unsure.
    """
    vocab_size = logits_NV.shape[1]
    scaled_NV = logits_NV.double() / noisy.temperature_N.clamp(min=COLDEST)[:, None]
    made: Cut | None = None
    if cuts is not None:
        made = cut(ops, logits_NV, scaled_NV, cuts, reach.head)
        scaled_NV = made.scaled_NV
    if reach.candidates >= vocab_size:
        id_NV = torch.arange(vocab_size, device=logits_NV.device).expand_as(scaled_NV)
        score_NV = scaled_NV + ops.noise_at(noisy.key_N, id_NV)
        token_N = score_NV.argmax(-1)
        unsure_N = torch.zeros_like(token_N, dtype=torch.bool)
    else:
        bound_NV = ops.noise_bounds(scaled_NV, noisy.key_N, SLACK)
        top = highest(bound_NV, reach.candidates + 1)
        id_NK = top.id_SK[:, :-1]
        score_NK = scaled_NV.gather(1, id_NK) + ops.noise_at(noisy.key_N, id_NK)
        most_N1 = score_NK.amax(-1, keepdim=True)
        token_N = torch.where(score_NK == most_N1, id_NK, vocab_size - 1).amin(-1)
        unsure_N = ~(most_N1[:, 0] > top.value_SK[:, -1])
    if made is None:
        return Drawn(token_N, unsure_N)
    return Drawn(token_N, unsure_N | made.beyond_N, made.needed_N)


def cut(ops: Ops, logits_NV: Tensor, scaled_NV: Tensor, cuts: Cuts, head: int) -> Cut:
    vocab_size = logits_NV.shape[1]
    whole = cuts.place_C.shape[0] == logits_NV.shape[0]
    logits_CV = logits_NV if whole else logits_NV[cuts.place_C]
    scaled_CV = scaled_NV if whole else scaled_NV[cuts.place_C]
    rank_CV = ops.rank_keys(logits_CV)
    top = torch.topk(rank_CV, head)
    kept_C = torch.where(cuts.top_k_C > 0, cuts.top_k_C.clamp(max=vocab_size), vocab_size)
    scaled_CV = scaled_CV.masked_fill(rank_CV < least(top.values, kept_C)[:, None], float("-inf"))
    weight_CV, total_C = ops.exp_sums(scaled_CV, scaled_CV.amax(-1))
    reached_CH = ops.running_sums(weight_CV.gather(1, top.indices))
    mass_C = cuts.top_p_C * total_C
    # A token stays while those before it do not reach the mass: the one that crosses it stays.
    before_CH = torch.cat([torch.zeros_like(reached_CH[:, :1]), reached_CH[:, :-1]], 1)
    place_H = torch.arange(head, device=logits_NV.device)
    nucleus_C = torch.where(before_CH < mass_C[:, None], head, place_H).amin(-1)
    nucleus_C = torch.where(cuts.top_p_C < 1, nucleus_C, vocab_size)
    out_CV = rank_CV < least(top.values, nucleus_C)[:, None]
    out_CV |= weight_CV < cuts.min_p_C[:, None]
    scaled_CV = scaled_CV.masked_fill(out_CV, float("-inf"))
    beyond_C = (kept_C > head) & (cuts.top_p_C < 1) & (reached_CH[:, -1] < mass_C)
    beyond_C |= (kept_C > head) & (kept_C < vocab_size)
    needed_C = torch.minimum(kept_C, nucleus_C)
    needed_C = torch.where(needed_C < vocab_size, needed_C, 0)
    needed_C = torch.where(beyond_C, head + 1, needed_C)
    if whole:
        return Cut(scaled_CV, beyond_C, needed_C)
    place_C, none_N = cuts.place_C, torch.zeros_like(scaled_NV[:, 0], dtype=torch.int64)
    return Cut(
        scaled_NV.index_copy(0, place_C, scaled_CV),
        none_N.bool().index_copy(0, place_C, beyond_C),
        none_N.index_copy(0, place_C, needed_C),
    )


def least(sorted_CH: Tensor, count_C: Tensor) -> Tensor:
    """The rank of the last of a row's first `count` tokens; below every rank if all stay."""
    head = sorted_CH.shape[1]
    last_C1 = (count_C - 1).clamp(min=0, max=head - 1)[:, None]
    none = torch.iinfo(torch.int64).min
    return torch.where(count_C > head, none, sorted_CH.gather(1, last_C1)[:, 0])


class Highest(NamedTuple):
    """A row's highest values, the highest first, and where they stand."""

    value_SK: Tensor
    id_SK: Tensor


def highest(x_SV: Tensor, count: int) -> Highest:
    """The `count` highest of each row. A few of many are found among the highest of its runs: a
    device selects from many short rows at once, and passes again and again over a long one."""
    rows, size = x_SV.shape
    width = size // RUNS
    if size % RUNS or width < MANY * count:
        return Highest(*torch.topk(x_SV, count))
    value_RK, place_RK = torch.topk(x_SV.reshape(rows * RUNS, width), count, sorted=False)
    first_R1 = torch.arange(0, size, width, device=x_SV.device)[:, None]
    id_SC = (place_RK.view(rows, RUNS, count) + first_R1).flatten(1)
    top = torch.topk(value_RK.view(rows, -1), count)
    return Highest(top.values, id_SC.gather(1, top.indices))


class Told(NamedTuple):
    """Natural log-probabilities in float32 of each row's token, and of its `top` best by id."""

    logprob_T: Tensor
    id_TN: Tensor
    top_TN: Tensor


def tell(ops: Ops, logits_TV: Tensor, token_T: Tensor, top: int) -> Told:
    """Log-probabilities of raw logits; alternatives best first, ties to the lowest id."""
    logits_TV = logits_TV.float()
    most_T = logits_TV.amax(-1)
    total_T = ops.exp_sums(logits_TV, most_T)[1].log()
    own_T1 = logits_TV.gather(1, token_T[:, None])
    if top:
        id_TN = highest(ops.rank_keys(logits_TV), top).id_SK
    else:
        id_TN = token_T.new_empty(token_T.shape[0], 0)
    found_TN = torch.cat([own_T1, logits_TV.gather(1, id_TN)], 1)
    found_TN = (found_TN - most_T[:, None]) - total_T[:, None]
    return Told(found_TN[:, 0], id_TN, found_TN[:, 1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """How one row's token is drawn: at which absolute position, under which mask."""

    sampling: Sampling
    seed: int
    position: int
    mask: bytes | None = None


def draw(ops: Ops, logits_SV: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token a row, from records; rows are sound. Waits for the device."""
    device, vocab_size = logits_SV.device, logits_SV.shape[1]
    masked = [row for row, one in enumerate(draws) if one.mask is not None]
    if masked:
        held = b"".join(one.mask[: -(-vocab_size // 8)] for one in draws if one.mask is not None)
        mask_MB = torch.frombuffer(bytearray(held), dtype=torch.uint8).view(len(masked), -1)
        logits_SV = allow(logits_SV, torch.tensor(masked, device=device), mask_MB.to(device))
    warm = [row for row, one in enumerate(draws) if one.sampling.temperature > 0]
    if not warm:
        return draw_rows(ops, logits_SV, None, None, Reach(0, 0)).token_S.tolist()
    keys = [signed(keyed.row_key(draws[row].seed, draws[row].position)) for row in warm]
    temperatures = [draws[row].sampling.temperature for row in warm]
    noisy = Noisy(
        torch.tensor(warm, device=device),
        torch.tensor(keys, device=device),
        torch.tensor(temperatures, dtype=torch.float64, device=device),
    )
    cut_places = [place for place, row in enumerate(warm) if has_cuts(draws[row].sampling)]
    cuts = None
    if cut_places:
        own = [draws[warm[place]].sampling for place in cut_places]
        cuts = Cuts(
            torch.tensor(cut_places, device=device),
            torch.tensor([one.top_k for one in own], device=device),
            torch.tensor([one.top_p for one in own], dtype=torch.float64, device=device),
            torch.tensor([one.min_p for one in own], dtype=torch.float64, device=device),
        )
    found = draw_rows(ops, logits_SV, noisy, cuts, Reach(HEAD, CANDIDATES))
    assert found.unsure_S is not None
    if bool(found.unsure_S.any()):
        found = draw_rows(ops, logits_SV, noisy, cuts, Reach(vocab_size, vocab_size))
    return found.token_S.tolist()


def logprobs(ops: Ops, logits_V: Tensor, token: int, alternatives: int) -> TokenLogprob:
    """Log-probabilities of one row, as a record. Waits for the device."""
    token_1 = torch.tensor([token], device=logits_V.device)
    told = tell(ops, logits_V[None], token_1, alternatives)
    top = zip(told.id_TN[0].tolist(), told.top_TN[0].tolist(), strict=True)
    return TokenLogprob(token=token, logprob=float(told.logprob_T), top=tuple(top))
