"""Drawing tokens and reading log-probabilities: a row's result depends on that row alone.

Whatever sums over a vocabulary is done a row at a time, on one shape; whatever runs over many rows
at once is pointwise. Order of cuts: logit descending then id ascending, top-k, temperature, top-p
(the token that crosses p stays), min-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tensorfold.core import keyed
from tensorfold.core.engine import noise
from tensorfold.core.engine_api import Sampling, TokenLogprob

# Added to an upper bound of a score so that its own rounding can never exclude the best token.
SLACK = 1e-2
# Colder temperatures draw as this one does: any two different float32 logits are then further apart
# than any noise, and none of them divided by it is infinite.
COLDEST = 1e-200
# First width of the sorted head in which top-p looks for its last token.
HEAD = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """How one row's token is drawn: at which absolute position, under which mask."""

    sampling: Sampling
    seed: int
    position: int
    mask: bytes | None = None


def faulty(logits_SV: Tensor) -> list[bool]:
    """Rows from which nothing may be drawn: any NaN or +infinity, or no finite value at all."""
    best_S = logits_SV.amax(-1)
    return (~torch.isfinite(best_S)).tolist()


def allowed(mask: bytes, vocab_size: int, device: torch.device) -> Tensor:
    """A vocabulary mask's bits as booleans [V]."""
    assert len(mask) * 8 >= vocab_size, (len(mask), vocab_size)
    packed = torch.frombuffer(bytearray(mask), dtype=torch.uint8).to(device)
    bits = (packed[:, None] >> torch.arange(8, device=device, dtype=torch.uint8)) & 1
    return bits.flatten()[:vocab_size].bool()


def draw(logits_SV: Tensor, draws: Sequence[Draw], steps_V: Tensor) -> list[int]:
    """One token a row. Rows are finite; `steps_V` is `noise.token_steps`."""
    logits_SV = masked(logits_SV, draws)
    tokens = torch.argmax(logits_SV, -1).tolist()
    sampled = [row for row, one in enumerate(draws) if one.sampling.temperature > 0]
    if sampled:
        chosen = draw_keyed(logits_SV[sampled], [draws[row] for row in sampled], steps_V)
        for row, token in zip(sampled, chosen, strict=True):
            tokens[row] = token
    return tokens


def masked(logits_SV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The logits with each row's forbidden tokens at -infinity; the given ones are left alone."""
    if all(one.mask is None for one in draws):
        return logits_SV
    logits_SV = logits_SV.clone()
    for row, one in enumerate(draws):
        if one.mask is not None:
            kept_V = allowed(one.mask, logits_SV.shape[1], logits_SV.device)
            logits_SV[row].masked_fill_(~kept_V, float("-inf"))
    return logits_SV


def draw_keyed(logits_SV: Tensor, draws: Sequence[Draw], steps_V: Tensor) -> list[int]:
    """The highest of logit / temperature + noise, over what the cuts leave.

    A bound that is cheap for the whole vocabulary leaves few tokens whose exact score is needed:
    -log(-log(u)) <= -log(1 - u), and every row's best is at least the score of its top logit.
    """
    temperatures = [max(one.sampling.temperature, COLDEST) for one in draws]
    scaled_SV = logits_SV.double() / column(temperatures, logits_SV)
    for row, one in enumerate(draws):
        if has_cuts(one.sampling):
            keep_V = cut(logits_SV[row], scaled_SV[row], one.sampling)
            scaled_SV[row] = scaled_SV[row].masked_fill(~keep_V, float("-inf"))
    keys = [keyed.row_key(one.seed, one.position) for one in draws]
    key_S = torch.tensor([noise.signed(key) for key in keys], device=logits_SV.device)
    bits_SV = noise.token_bits(key_S, steps_V)
    beyond_SV = 1.0 - (bits_SV.double() + 0.5) * 2.0**-52
    bound_SV = scaled_SV - torch.log(beyond_SV) + SLACK
    top_S1 = scaled_SV.argmax(-1, keepdim=True)
    floor_S1 = scaled_SV.gather(1, top_S1) + noise.gumbel(bits_SV.gather(1, top_S1))
    row_C, token_C = (bound_SV >= floor_S1).nonzero(as_tuple=True)
    score_C = scaled_SV[row_C, token_C] + noise.gumbel(bits_SV[row_C, token_C])
    return winners(row_C.tolist(), token_C.tolist(), score_C.tolist(), len(draws))


def column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


def winners(
    rows: Sequence[int], tokens: Sequence[int], scores: Sequence[float], num_rows: int
) -> list[int]:
    """Each row's token of the highest score; candidates come in ascending id, the first wins."""
    best: list[tuple[float, int] | None] = [None] * num_rows
    for row, token, score in zip(rows, tokens, scores, strict=True):
        held = best[row]
        if held is None or score > held[0]:
            best[row] = (score, token)
    return [held[1] for held in best if held is not None]


def has_cuts(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def cut(logits_V: Tensor, scaled_V: Tensor, sampling: Sampling) -> Tensor:
    """Which tokens of one row the cuts leave, boolean [V]."""
    vocab_size = logits_V.shape[0]
    kept = min(sampling.top_k, vocab_size) if sampling.top_k > 0 else vocab_size
    keep_V = torch.ones_like(logits_V, dtype=torch.bool)
    if kept < vocab_size:
        keep_V = highest(logits_V, kept)
        scaled_V = scaled_V.masked_fill(~keep_V, float("-inf"))
    weight_V = torch.exp(scaled_V - scaled_V.max())
    if sampling.top_p < 1:
        total = float(weight_V.sum())
        keep_V = keep_V & nucleus(logits_V, weight_V, sampling.top_p * total, kept)
    if sampling.min_p > 0:
        keep_V = keep_V & (weight_V >= sampling.min_p)
    return keep_V


def highest(logits_V: Tensor, count: int) -> Tensor:
    """The `count` highest, ties to the lowest ids, boolean [V]; needs no full sort."""
    least = torch.topk(logits_V, count).values[-1]
    above_V = logits_V > least
    level_V = logits_V == least
    room = count - int(above_V.sum())
    return above_V | (level_V & (level_V.cumsum(0) <= room))


def nucleus(logits_V: Tensor, weight_V: Tensor, mass: float, kept: int) -> Tensor:
    """The fewest highest tokens whose weights reach `mass`, boolean [V].

    Looks in a sorted head that doubles until it holds them, so that a large vocabulary is seldom
    sorted whole.
    """
    head = min(HEAD, kept)
    while True:
        in_head_V = highest(logits_V, head)
        ids = in_head_V.nonzero()[:, 0]
        order = torch.sort(logits_V[ids], descending=True, stable=True).indices
        reached = weight_V[ids[order]].cumsum(0)
        if head >= kept or float(reached[-1]) >= mass:
            break
        head = min(2 * head, kept)
    # A token stays while those before it do not reach the mass: the one that crosses it stays.
    before = torch.cat([reached.new_zeros(1), reached[:-1]])
    keep_V = torch.zeros_like(in_head_V)
    keep_V[ids[order[before < mass]]] = True
    return keep_V


def logprobs(logits_V: Tensor, token: int, alternatives: int) -> TokenLogprob:
    """Log-probabilities of one row's raw logits: its token's, and the best `alternatives`."""
    logits_V = logits_V.float()
    shifted_V = logits_V - logits_V.max()
    normed_V = shifted_V - shifted_V.exp().sum().log()
    top: tuple[tuple[int, float], ...] = ()
    if alternatives:
        ids = highest(logits_V, alternatives).nonzero()[:, 0]
        order = torch.sort(logits_V[ids], descending=True, stable=True).indices
        ids = ids[order]
        top = tuple(zip(ids.tolist(), normed_V[ids].tolist(), strict=True))
    return TokenLogprob(token=token, logprob=float(normed_V[token]), top=top)
