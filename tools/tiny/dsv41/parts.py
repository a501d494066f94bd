"""Norms, rotary positions, routed experts and Engram of the deepseek_v41 trainer.

Legend: B sequences, T rows, N streams, D hidden width, E experts, F inner width, C table columns,
P rotary pairs. Formulas: spec dsv41 2.2, 2.4 and 2.8. Every expert runs on every row and the
unchosen ones are weighted zero: one plain product instead of a gather.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tensorfold.families.dsv41.config import Config
from tensorfold.families.dsv41.engram import Hashing, names

LEAST = 1e-6  # of a gate's dot product, below which its root is cut


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        """In fp32, whatever comes in."""
        x = x.float()
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


def linear(columns: int, rows: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)


def turns(position: Tensor, rate_P: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [..., P] of each position's angles."""
    angle = position[..., None].to(rate_P.dtype) * rate_P
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the last 2P values of x, adjacent pairs; cos and sin broadcast over the pairs' shape."""
    pairs = cos.shape[-1]
    kept, turned = x.float().split([x.shape[-1] - 2 * pairs, 2 * pairs], -1)
    a, b = turned.unflatten(-1, (pairs, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([kept, turned], -1)


class Gate(nn.Module):
    def __init__(self, experts: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.register_buffer("bias", torch.zeros(experts))


class Mlp(nn.Module):
    """w1, w3 and w2 of one expert, or (`experts`) of all side by side, stacked in front."""

    def __init__(self, hidden: int, inner: int, *experts: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(*experts, inner, hidden))
        self.w3 = nn.Parameter(torch.empty(*experts, inner, hidden))
        self.w2 = nn.Parameter(torch.empty(*experts, hidden, inner))


def clamped(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


class Moe(nn.Module):
    def __init__(self, config: Config, experts: int, top: int) -> None:
        super().__init__()
        self.top, self.scale, self.limit = top, config.routed_scale, config.swiglu_limit
        self.gate = Gate(experts, config.hidden_size)
        self.experts = Mlp(config.hidden_size, config.expert_size, experts)
        self.shared_experts = Mlp(config.hidden_size, config.expert_size)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """The output [B, T, D] and each expert's share of the choices [E] (even: 1 / E)."""
        with torch.autocast(x_BTD.device.type, enabled=False):
            chance = F.softplus(F.linear(x_BTD.float(), self.gate.weight)).sqrt()
            best = (chance.detach() + self.gate.bias).topk(self.top, -1, sorted=False).indices
            chosen = torch.zeros_like(chance).scatter(-1, best, 1.0)
            kept = chance * chosen
            weight_BTE = kept / (kept.sum(-1, keepdim=True) + 1e-20) * self.scale
        own, shared = self.experts, self.shared_experts
        inner = clamped(
            F.linear(x_BTD, own.w1.flatten(0, 1)), F.linear(x_BTD, own.w3.flatten(0, 1)), self.limit
        )
        inner = inner * weight_BTE.repeat_interleave(own.w1.shape[1], -1)
        out = F.linear(inner.to(x_BTD.dtype), own.w2.permute(1, 0, 2).flatten(1))
        inner = clamped(F.linear(x_BTD, shared.w1), F.linear(x_BTD, shared.w3), self.limit)
        return out + F.linear(inner, shared.w2), chosen.flatten(0, -2).mean(0) / self.top


class Engram(nn.Module):
    """A table of n-grams, whose rows enter every stream by a gate of its own."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        own = config.engram
        assert own is not None
        self.which, self.eps = own.layers.index(layer), config.norm_eps
        wide, hidden = (config.streams + 1) * config.hidden_size, config.hidden_size
        self.embed = nn.Embedding(own.rows[self.which], own.size)
        self.wkv = linear(own.columns * own.size, wide)
        self.q_weight = nn.Parameter(torch.empty(config.streams, hidden))
        self.k_weight = nn.Parameter(torch.empty(config.streams, hidden))

    def forward(self, streams_BTND: Tensor, row_BTC: Tensor) -> Tensor:
        num_N, hidden = self.q_weight.shape
        both = self.wkv(self.embed(row_BTC).flatten(-2)).float()
        key, value = both.split([num_N * hidden, hidden], -1)
        key = key.unflatten(-1, (num_N, hidden))
        x = streams_BTND
        dot = (x * (self.q_weight * self.k_weight) * key).sum(-1)
        for side in (x, key):
            dot = dot * (side.square().mean(-1) + self.eps).rsqrt()
        dot = dot * hidden**-0.5
        gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=LEAST).sqrt(), dot))
        return x + gate[..., None] * value[..., None, :]


def engram_rows(config: Config, hashing: Hashing, ids_BT: Tensor) -> Tensor:
    """Table rows [B, T, Engram layers, C] of sequences that begin at position 0."""
    num_B, num_T = ids_BT.shape
    position_T = torch.arange(num_T, device=ids_BT.device)
    shifts = hashing.factor_ES.shape[1]
    back = [F.pad(ids_BT, (shift, 0))[:, :num_T] for shift in range(shifts)]
    ids_RS = torch.stack(back, -1).flatten(0, 1)
    found = names(config, hashing, ids_RS, position_T.repeat(num_B))
    return found.unflatten(0, (num_B, num_T))
