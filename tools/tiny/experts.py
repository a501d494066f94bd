"""Clamped SwiGLU MLPs and routed experts, differentiable.

Legend: B sequences, T rows, E experts, F inner width, D hidden width. Every expert runs on every
row and the unchosen ones are weighted zero: four times the work of the chosen ones, and one plain
product instead of a gather.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tensorfold.tools.tiny.shape import Shape


def clamped(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(clamped(self.gate_proj(x), self.up_proj(x), self.limit))


class Router(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.experts, shape.hidden))
        self.register_buffer("e_score_correction_bias", torch.zeros(shape.experts))


class Experts(nn.Module):
    """Expert weights side by side: gate, up [E, F, D] and down [E, D, F]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        wide = (shape.experts, shape.expert_inner, shape.hidden)
        self.gate = nn.Parameter(torch.empty(wide))
        self.up = nn.Parameter(torch.empty(wide))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.expert_inner))


class Moe(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.gate = Router(shape)
        self.experts = Experts(shape)
        inner = shape.expert_inner * shape.shared
        self.shared_experts = Mlp(shape.hidden, inner, shape.limit)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """The output [B, T, D] and each expert's share of the choices [E] (even: 1 / E)."""
        shape = self.shape
        with torch.autocast(x_BTD.device.type, enabled=False):
            score_BTE = torch.sigmoid(F.linear(x_BTD.float(), self.gate.weight))
            biased = score_BTE.detach() + self.gate.e_score_correction_bias
            best = biased.topk(shape.experts_per_token, -1, sorted=False).indices
            chosen = torch.zeros_like(score_BTE).scatter(-1, best, 1.0)
            kept = score_BTE * chosen
            weight_BTE = kept / (kept.sum(-1, keepdim=True) + 1e-20) * shape.route_scale
        inner = clamped(
            F.linear(x_BTD, self.experts.gate.flatten(0, 1)),
            F.linear(x_BTD, self.experts.up.flatten(0, 1)),
            shape.limit,
        )
        inner = inner * weight_BTE.repeat_interleave(shape.expert_inner, -1)
        down_DF = self.experts.down.permute(1, 0, 2).flatten(1)
        out = F.linear(inner.to(x_BTD.dtype), down_DF)
        return out + self.shared_experts(x_BTD), chosen.mean((0, 1)) / shape.experts_per_token
