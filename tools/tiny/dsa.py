"""Sparse attention over latents (MLA without rotation) with its pooled indexer, differentiable.

Legend: B sequences, T and S rows (queries, keys), P pools, M members of a pool, H heads,
I index heads, D hidden width.

The indexer takes no gradient from the model's loss: it learns by itself to rank pools as the
attention does (the sparse stage of DeepSeek-V3.2's indexer training), from detached inputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tensorfold.tools.tiny.shape import Shape

FAR = -1e30


class Indexer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        hidden, dim = shape.hidden, shape.index_dim
        self.wq_b = nn.Linear(shape.q_rank, shape.index_heads * dim, bias=False)
        self.wk = nn.Linear(hidden, dim, bias=False)
        self.weights_proj = nn.Linear(hidden, shape.index_heads, bias=False)
        self.k_norm = nn.LayerNorm(dim, eps=1e-6)
        self.index_kpool_compress_ape = nn.Parameter(torch.empty(shape.pool, dim))
        self.index_kpool_compress_gate = nn.Parameter(torch.empty(dim, hidden))

    def forward(self, x_BTD: Tensor, latent_BTQ: Tensor) -> Tensor:
        """Scores [B, T, P] in fp32 of every complete pool, visible or not."""
        shape = self.shape
        num_B, num_T, _ = x_BTD.shape
        num_P = num_T // shape.pool
        query = self.wq_b(latent_BTQ).float().view(num_B, num_T * shape.index_heads, -1)
        key = self.k_norm(self.wk(x_BTD).float())
        gate = F.linear(x_BTD, self.index_kpool_compress_gate).float()
        weight = self.weights_proj(x_BTD).float() * shape.index_heads**-0.5
        with torch.autocast(x_BTD.device.type, enabled=False):
            pools = (num_B, num_P, shape.pool, shape.index_dim)
            whole = num_P * shape.pool
            share = (gate[:, :whole].view(pools) + self.index_kpool_compress_ape).softmax(2)
            pooled = (share * key[:, :whole].view(pools)).sum(2)
            match = F.relu(query @ pooled.transpose(1, 2) * shape.index_dim**-0.5)
            match = match.view(num_B, num_T, shape.index_heads, num_P)
            return (match * weight[..., None]).sum(2)


def chosen_pools(score_BTP: Tensor, topk: int, pool: int) -> Tensor:
    """Booleans [B, T, P]: the best `topk // pool` complete pools that each row can see.

    Equal scores: the earlier pool (a stable sort, where rows are few enough for one).
    """
    num_T, num_P = score_BTP.shape[1:]
    row = torch.arange(num_T, device=score_BTP.device)
    ends = torch.arange(num_P, device=score_BTP.device) * pool + pool - 1
    visible_TP = ends[None, :] <= row[:, None]
    masked = torch.where(visible_TP, score_BTP, FAR)
    most = min(topk // pool, num_P)
    if torch.is_grad_enabled():
        best = masked.topk(most, -1, sorted=False).indices
    else:
        best = torch.sort(masked, stable=True, dim=-1, descending=True).indices[..., :most]
    chosen = torch.zeros_like(masked, dtype=torch.bool).scatter(-1, best, True)
    return chosen & visible_TP


class Dsa(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        hidden, heads = shape.hidden, shape.heads
        self.q_a_proj = nn.Linear(hidden, shape.q_rank, bias=False)
        self.q_a_layernorm = nn.RMSNorm(shape.q_rank, eps=shape.eps)
        self.q_b_proj = nn.Linear(shape.q_rank, heads * shape.nope, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, shape.kv_rank, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(shape.kv_rank, eps=shape.eps)
        self.kv_b_proj = nn.Linear(shape.kv_rank, heads * (shape.nope + shape.value), bias=False)
        self.o_proj = nn.Linear(heads * shape.value, hidden, bias=False)
        self.indexer = Indexer(shape)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """The layer's output [B, T, D], the indexer's loss (with gradients on), pools [B, T, P]."""
        shape = self.shape
        num_B, num_T, _ = x_BTD.shape
        latent_q = self.q_a_layernorm(self.q_a_proj(x_BTD))
        q = self.q_b_proj(latent_q).view(num_B, num_T, shape.heads, shape.nope)
        latent = self.kv_a_layernorm(self.kv_a_proj_with_mqa(x_BTD))
        both = self.kv_b_proj(latent).view(num_B, num_T, shape.heads, -1)
        k, v = both.split([shape.nope, shape.value], -1)
        score_BTP = self.indexer(x_BTD.detach(), latent_q.detach())
        chosen_BTP = chosen_pools(score_BTP.detach(), shape.index_topk, shape.pool)

        row = torch.arange(num_T, device=x_BTD.device)
        causal_TS = row[None, :] <= row[:, None]
        seen = row + 1
        tail_TS = row[None, :] >= (seen - seen % shape.pool)[:, None]
        whole = chosen_BTP.shape[-1] * shape.pool
        keep = F.pad(chosen_BTP.repeat_interleave(shape.pool, -1), (0, num_T - whole))
        keep = (keep | tail_TS) & causal_TS
        logits = q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)
        logits = logits.float() * shape.nope**-0.5
        share = torch.where(keep[:, None], logits, FAR).softmax(-1)
        out = share.to(v.dtype) @ v.permute(0, 2, 1, 3)
        out = self.o_proj(out.permute(0, 2, 1, 3).reshape(num_B, num_T, -1))
        loss = None
        if torch.is_grad_enabled():
            loss = self.ranking_loss(score_BTP, logits.detach(), causal_TS)
        return out, loss, chosen_BTP

    def ranking_loss(self, score_BTP: Tensor, logits_BHTS: Tensor, causal_TS: Tensor) -> Tensor:
        """Mean cross-entropy of the pool scores against where unrestricted attention looks."""
        pool, num_P = self.shape.pool, score_BTP.shape[-1]
        whole = num_P * pool
        visible_TP = causal_TS[:, pool - 1 :: pool][:, :num_P]
        share = torch.where(causal_TS, logits_BHTS, FAR).softmax(-1).sum(1)[..., :whole]
        mass = share.unflatten(-1, (num_P, pool)).sum(-1) * visible_TP
        mass = mass / (mass.sum(-1, keepdim=True) + 1e-9)
        guess = torch.where(visible_TP, score_BTP, FAR).log_softmax(-1)
        return -(mass * guess).sum(-1).mean()
