"""Windowed attention with compressed rows and the index that picks them, differentiable.

Legend: B sequences, T rows, S window keys, J compressed rows, K blocks of them, H heads, G groups,
C head width, P rotary pairs. Formulas: spec dsv41 2.5 to 2.7.

The index takes no gradient from the model's loss: it learns by itself to rank compressed rows as
the layer's attention does, from detached inputs (the sparse stage of DeepSeek-V3.2's indexer
training).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tensorfold.families.dsv41.config import Config
from tensorfold.tools.tiny.dsv41.parts import Norm, linear, rotate

FAR = -1e30


class Turn(NamedTuple):
    """cos_TP and sin_TP at rows' positions; and at each compressed row's first position."""

    cos_TP: Tensor
    sin_TP: Tensor
    cos_JP: Tensor | None = None
    sin_JP: Tensor | None = None


class Memory(NamedTuple):
    """What a layer hands on: latents and index keys, the picks, the candidate blocks' rows."""

    latent_BJC: Tensor
    key_BJI: Tensor
    chosen_BTJ: Tensor | None
    allowed_BTJ: Tensor | None


class Compressor(nn.Module):
    def __init__(self, config: Config, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        hidden, size = config.hidden_size, config.head_size
        self.wkv = linear(hidden, size)
        if ratio > 1:
            self.wgate = linear(hidden, size)
        self.norm = Norm(size, config.norm_eps)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Latents [B, J, C] of the pairs that are whole, before they are turned."""
        value = self.wkv(x_BTD)
        if self.ratio > 1:
            whole = x_BTD.shape[1] // self.ratio * self.ratio
            pairs = (-1, self.ratio)
            share = self.wgate(x_BTD)[:, :whole].float().unflatten(1, pairs).softmax(2)
            value = (share * value[:, :whole].unflatten(1, pairs)).sum(2)
        return self.norm(value)


class Indexer(nn.Module):
    """A source of rows has wk and its norm besides."""

    def __init__(self, config: Config, own_keys: bool) -> None:
        super().__init__()
        self.heads, self.size = config.index_heads, config.index_size
        if own_keys:
            self.wk = linear(config.head_size, self.size)
            self.k_norm = Norm(self.size, config.norm_eps)
        self.wq_b = linear(config.q_rank, self.heads * self.size)
        self.weights_proj = linear(config.hidden_size, self.heads)

    def scores(self, x_BTD: Tensor, latent_BTQ: Tensor, key_BJI: Tensor, turn: Turn) -> Tensor:
        """Scores [B, T, J] in fp32 of every compressed row, visible or not."""
        query = self.wq_b(latent_BTQ).unflatten(-1, (self.heads, self.size))
        query = rotate(query, turn.cos_TP[:, None], turn.sin_TP[:, None])
        weight = self.weights_proj(x_BTD).float() * (self.heads * self.size) ** -0.5
        with torch.autocast(x_BTD.device.type, enabled=False):
            match = F.relu(query.flatten(1, 2) @ key_BJI.transpose(1, 2))
            match = match.unflatten(1, (-1, self.heads))
            return (match * weight[..., None]).sum(2)


def best(score: Tensor, top: int, training: bool) -> Tensor:
    """Booleans: the `top` highest of the last axis; at equal scores (not in training) the first."""
    top = min(top, score.shape[-1])
    if training:
        found = score.topk(top, -1, sorted=False).indices
    else:
        found = torch.sort(score, stable=True, dim=-1, descending=True).indices[..., :top]
    return torch.zeros_like(score, dtype=torch.bool).scatter(-1, found, True)


def candidates(config: Config, score_BTJ: Tensor, seen_TJ: Tensor, training: bool) -> Tensor:
    """Rows [B, T, J] of the best blocks by their best visible row; the newest row's block is in."""
    num_J, size = score_BTJ.shape[-1], config.candidate_size
    masked = torch.where(seen_TJ, score_BTJ, FAR)
    block_BTK = F.pad(masked, (0, -num_J % size), value=FAR).unflatten(-1, (-1, size)).amax(-1)
    newest_T1 = (seen_TJ.sum(-1, keepdim=True) - 1).div(size, rounding_mode="floor")
    first_K = torch.arange(block_BTK.shape[-1], device=score_BTJ.device)
    block_BTK = torch.where(first_K == newest_T1, -FAR, block_BTK)
    kept_BTK = best(block_BTK, config.candidate_blocks, training) & (block_BTK > FAR)
    return kept_BTK.repeat_interleave(size, -1)[..., :num_J]


class Attention(nn.Module):
    """`ratio` 0 has the window alone; `source` and `index` own a compressor, an indexer."""

    def __init__(
        self,
        config: Config,
        *,
        ratio: int,
        source: bool = False,
        index: bool = False,
        publishes: bool = False,
        restricted: bool = False,
    ) -> None:
        super().__init__()
        self.config, self.ratio = config, ratio
        self.publishes, self.restricted = publishes, restricted
        hidden, inner = config.hidden_size, config.heads * config.head_size
        self.wq_a = linear(hidden, config.q_rank)
        self.q_norm = Norm(config.q_rank, config.norm_eps)
        self.wq_b = linear(config.q_rank, inner)
        self.wkv = linear(hidden, config.head_size)
        self.kv_norm = Norm(config.head_size, config.norm_eps)
        self.wo_a = linear(inner // config.groups, config.groups * config.o_rank)
        self.wo_b = linear(config.groups * config.o_rank, hidden)
        self.attn_sink = nn.Parameter(torch.empty(config.heads))
        self.compressor = Compressor(config, ratio) if source else None
        self.indexer = Indexer(config, source) if index else None

    def queries(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """The query's normed latent [.., Q] and the turned queries [.., H, C]."""
        latent = self.q_norm(self.wq_a(x_BTD))
        q = self.wq_b(latent).unflatten(-1, (self.config.heads, self.config.head_size))
        return latent, rotate(q, cos[..., None, :], sin[..., None, :])

    def rows(self, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Window rows [.., C]: keys, and values."""
        return rotate(self.kv_norm(self.wkv(x_BTD)), cos, sin)

    def output(self, out: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[.., H, C] turned back, then each group's product and the product over all of them."""
        own = self.config
        out = rotate(out, cos[..., None, :], -sin[..., None, :])
        out = out.flatten(-2).unflatten(-1, (own.groups, -1))
        down = self.wo_a.weight.unflatten(0, (own.groups, own.o_rank))
        return self.wo_b(torch.einsum("...gk,gnk->...gn", out, down).flatten(-2))

    def compress(self, x_BTD: Tensor, turn: Turn) -> Memory:
        assert self.compressor is not None
        assert self.indexer is not None
        latent = self.compressor(x_BTD)
        key = self.indexer.k_norm(self.indexer.wk(latent.detach()))
        key = rotate(key, turn.cos_JP, turn.sin_JP)
        return Memory(rotate(latent, turn.cos_JP, turn.sin_JP), key, None, None)

    def pick(
        self, x_BTD: Tensor, latent_BTQ: Tensor, memory: Memory, seen_TJ: Tensor, turn: Turn
    ) -> tuple[Memory, Tensor, Tensor]:
        """The memory with this index's picks; the scores; the rows that it may pick."""
        assert self.indexer is not None
        score_BTJ = self.indexer.scores(x_BTD.detach(), latent_BTQ.detach(), memory.key_BJI, turn)
        open_BTJ = seen_TJ.expand_as(score_BTJ)
        ranked, training = score_BTJ.detach(), self.training
        if self.restricted:
            assert memory.allowed_BTJ is not None
            open_BTJ = open_BTJ & memory.allowed_BTJ
        allowed = memory.allowed_BTJ
        if self.publishes:
            allowed = candidates(self.config, ranked, seen_TJ, training)
        masked = torch.where(open_BTJ, ranked, FAR)
        chosen = best(masked, self.config.index_top, training) & open_BTJ
        memory = Memory(memory.latent_BJC, memory.key_BJI, chosen, allowed)
        return memory, score_BTJ, open_BTJ

    def window_logits(self, q_BTHC: Tensor, kv_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, T, H, S] over the own and the former stretch of `window` rows, FAR
        outside the window; and those stretches' rows [B, stretches, S, C]. T is whole stretches."""
        wide = self.config.window
        q = q_BTHC.unflatten(1, (-1, wide))
        own = F.pad(kv_BTC, (0, 0, wide, 0)).unflatten(1, (-1, wide))
        key = torch.cat([own[:, :-1], own[:, 1:]], 2)
        logits = q.flatten(2, 3) @ key.transpose(-1, -2)
        logits = logits.unflatten(2, (wide, -1)).float()
        row = torch.arange(wide, device=q.device)[:, None]
        place = torch.arange(2 * wide, device=q.device)
        seen = (place > row) & (place <= row + wide)
        first = torch.arange(q.shape[1], device=q.device)[:, None, None] == 0
        seen = seen & ~(first & (place < wide))
        return torch.where(seen[None, :, :, None], logits, FAR).flatten(1, 2), key

    def forward(
        self, x_BTD: Tensor, turn: Turn, memory: Memory | None
    ) -> tuple[Tensor, Memory | None, Tensor | None]:
        """The output [B, T, D], what goes on to the next layer, the index's loss in training."""
        num_T, wide = x_BTD.shape[1], self.config.window
        latent, q = self.queries(x_BTD, turn.cos_TP, turn.sin_TP)
        kv = self.rows(x_BTD, turn.cos_TP, turn.sin_TP)
        dtype = torch.bfloat16 if torch.is_autocast_enabled(x_BTD.device.type) else kv.dtype
        q, kv = (q * self.config.head_size**-0.5).to(dtype), kv.to(dtype)
        more = -num_T % wide
        q_whole, kv_whole = F.pad(q, (0, 0, 0, 0, 0, more)), F.pad(kv, (0, 0, 0, more))
        near, key = self.window_logits(q_whole, kv_whole)
        near = near[:, :num_T]
        total = torch.logaddexp(near.logsumexp(-1), self.attn_sink.float())
        ranking = seen_TJ = None
        if self.ratio:
            if self.compressor is not None:
                memory = self.compress(x_BTD, turn)
            assert memory is not None
            row = torch.arange(num_T, device=x_BTD.device)[:, None]
            place = torch.arange(memory.latent_BJC.shape[1], device=x_BTD.device)
            seen_TJ = place < (row + 1) // self.ratio
        out_far: Tensor | float = 0.0
        if seen_TJ is not None and seen_TJ.shape[1]:
            value = memory.latent_BJC.to(dtype)
            far = q.flatten(1, 2) @ value.transpose(1, 2)
            far = far.unflatten(1, (num_T, -1)).float()
            if self.indexer is not None:
                memory, score, open_BTJ = self.pick(x_BTD, latent, memory, seen_TJ, turn)
                if self.training:
                    ranking = ranking_loss(score, far.detach(), total.detach(), seen_TJ, open_BTJ)
            assert memory.chosen_BTJ is not None
            far = torch.where(memory.chosen_BTJ[:, :, None], far, FAR)
            total = torch.logaddexp(total, far.logsumexp(-1))
            share = (far - total[..., None]).exp().to(dtype)
            out_far = (share.flatten(1, 2) @ value).unflatten(1, (num_T, -1))
        share = F.pad((near - total[..., None]).exp().to(dtype), (0, 0, 0, 0, 0, more))
        out = share.unflatten(1, (-1, wide)).flatten(2, 3) @ key
        out = out.unflatten(2, (wide, -1)).flatten(1, 2)[:, :num_T] + out_far
        return self.output(out, turn.cos_TP, turn.sin_TP), memory, ranking


def ranking_loss(
    score_BTJ: Tensor, far_BTHJ: Tensor, near_BTH: Tensor, seen_TJ: Tensor, open_BTJ: Tensor
) -> Tensor:
    """Mean cross-entropy of the scores against where unrestricted attention looks.

    near_BTH is the log of the window's and the sink's weight.
    """
    far = torch.where(seen_TJ[:, None], far_BTHJ, FAR)
    total = torch.logaddexp(far.logsumexp(-1), near_BTH)
    mass = (far - total[..., None]).exp().sum(2) * open_BTJ
    mass = mass / (mass.sum(-1, keepdim=True) + 1e-9)
    guess = torch.where(open_BTJ, score_BTJ, FAR).log_softmax(-1)
    return -(mass * torch.where(open_BTJ, guess, 0.0)).sum(-1).mean()
