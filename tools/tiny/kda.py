"""Kimi delta attention, differentiable, in blocks of 64 rows.

Legend: B sequences, T rows, H heads, K key channels, V value channels, C blocks, R rows of a
block, S sub-blocks of a block, Q rows of a sub-block, D hidden width.

Inside a block the recurrence is solved as one triangular system; between blocks the state is an
affine map of the state before it, and the maps are composed in a logarithmic number of steps.
Formula: Kimi Linear's chunked delta rule, with every decay written as the exponential of a
difference of cumulated gates.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tensorfold.tools.tiny.shape import Shape

ROWS = 64
SUB = 16
# Below this a factor of a pair in one 16-row sub-block never clips: 8 rows at a bound of -5.
CLIP = 44.0


class UnitLowerInverse(torch.autograd.Function):
    """(1 + strictly lower)^-1 of [..., 64, 64], merging diagonal blocks of doubling size."""

    @staticmethod
    def forward(ctx, lower_RR: Tensor) -> Tensor:
        row = torch.arange(ROWS, device=lower_RR.device)
        inverse_RR = torch.eye(ROWS, device=lower_RR.device, dtype=lower_RR.dtype)
        inverse_RR = inverse_RR.expand_as(lower_RR)
        size = 1
        while size < ROWS:
            block = row // size
            joins = (block[:, None] % 2 == 1) & (block[None, :] == block[:, None] - 1)
            link_RR = torch.where(joins, lower_RR, 0.0)
            link_RR = link_RR if size == 1 else inverse_RR @ link_RR @ inverse_RR
            inverse_RR = inverse_RR - link_RR
            size *= 2
        ctx.save_for_backward(inverse_RR)
        return inverse_RR

    @staticmethod
    def backward(ctx, grad_RR: Tensor) -> Tensor:
        (inverse_RR,) = ctx.saved_tensors
        turned_RR = inverse_RR.transpose(-1, -2)
        return -(turned_RR @ grad_RR @ turned_RR).tril(-1)


def blocked_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Outputs [B, T, H, V] in fp32 of the gated delta rule started from an empty state.

    q, k, g [B, T, H, K] (k of unit length, q scaled, g the log decay, at least -5), v
    [B, T, H, V], beta [B, T, H]; all fp32. A short last block is padded with rows that change
    nothing.
    """
    num_B, num_T, num_H, num_K = k.shape
    num_V = v.shape[-1]
    short = -num_T % ROWS
    num_C = (num_T + short) // ROWS
    num_S = ROWS // SUB

    def blocks(x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, 0, 0, short)) if short else x
        return x.view(num_B, num_C, ROWS, num_H, -1).permute(0, 3, 1, 2, 4)

    q, k, v, g, beta = (blocks(x) for x in (q, k, v, g, beta[..., None]))
    cum_RK = g.cumsum(-2)
    # Each sub-block measures decay from its middle row, so both factors of a pair stay finite.
    split = (num_B, num_H, num_C, num_S, SUB)
    mid_SK = cum_RK[..., SUB // 2 - 1 :: SUB, :]
    fall_SQK = (cum_RK.view(*split, num_K) - mid_SK[..., None, :]).exp()
    kq = torch.cat([k.reshape(*split, num_K) * fall_SQK, q.reshape(*split, num_K) * fall_SQK], -2)
    rise_SRK = (mid_SK[..., None, :] - cum_RK[..., None, :, :]).clamp(max=CLIP).exp()
    pairs_SQR = kq @ (k[..., None, :, :] * rise_SRK).transpose(-1, -2)
    whole = (num_B, num_H, num_C, ROWS, ROWS)
    row = torch.arange(ROWS, device=k.device)
    below = row[:, None] > row[None, :]
    kk_RR = torch.where(below, pairs_SQR[..., :SUB, :].reshape(whole), 0.0)
    qk_RR = torch.where(
        below | (row[:, None] == row[None, :]), pairs_SQR[..., SUB:, :].reshape(whole), 0.0
    )
    solve_RR = UnitLowerInverse.apply(beta * kk_RR)
    decay_RK = cum_RK.exp()
    both = solve_RR @ (beta * torch.cat([v, k * decay_RK], -1))
    u_RV, w_RK = both.split([num_V, num_K], -1)
    last_K = cum_RK[..., -1:, :]
    left_KR = (k * (last_K - cum_RK).exp()).transpose(-1, -2)
    step_KV = left_KR @ u_RV
    if num_C == 1:
        out_RV = qk_RR @ u_RV
    else:
        map_KK = torch.diag_embed(last_K[..., 0, :].exp()) - left_KR @ w_RK
        state_KV = states(map_KK, step_KV)
        seen_RV = torch.cat([(q * decay_RK) @ state_KV, w_RK @ state_KV], -2)
        read_RV, lost_RV = seen_RV.split([ROWS, ROWS], -2)
        out_RV = read_RV + qk_RR @ (u_RV - lost_RV)
    out = out_RV.permute(0, 2, 3, 1, 4).reshape(num_B, num_C * ROWS, num_H, num_V)
    return out[:, :num_T]


def states(map_CKK: Tensor, step_CKV: Tensor) -> Tensor:
    """States [B, H, C, K, V] before each block, of S' = map S + step from an empty state."""
    num_C = map_CKK.shape[2]
    stride = 1
    while stride < num_C:
        head, tail = step_CKV[:, :, :stride], step_CKV[:, :, stride:]
        tail = tail + map_CKK[:, :, stride:] @ step_CKV[:, :, :-stride]
        step_CKV = torch.cat([head, tail], 2)
        if 2 * stride < num_C:
            later = map_CKK[:, :, stride:] @ map_CKK[:, :, :-stride]
            map_CKK = torch.cat([map_CKK[:, :, :stride], later], 2)
        stride *= 2
    return F.pad(step_CKV[:, :, :-1], (0, 0, 0, 0, 1, 0))


def unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class Taps(nn.Module):
    """A causal depthwise convolution over rows; its weight keeps the official [C, 1, taps]."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))


class Kda(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        hidden, dim = shape.hidden, shape.kda_dim
        width = shape.kda_heads * dim
        for name in "qkv":
            setattr(self, f"{name}_proj", nn.Linear(hidden, width, bias=False))
            setattr(self, f"{name}_conv1d", Taps(width, shape.conv))
        for name in "fg":
            setattr(self, f"{name}_a_proj", nn.Linear(hidden, dim, bias=False))
            setattr(self, f"{name}_b_proj", nn.Linear(dim, width, bias=False))
        self.b_proj = nn.Linear(hidden, shape.kda_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(shape.kda_heads))
        self.dt_bias = nn.Parameter(torch.empty(width))
        self.o_norm = nn.RMSNorm(dim, eps=shape.eps)
        self.o_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        shape = self.shape
        num_B, num_T, _ = x_BTD.shape
        heads = (num_B, num_T, shape.kda_heads, shape.kda_dim)
        weights = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        taps = torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])
        raw = F.linear(x_BTD, weights)
        forget = self.f_b_proj(self.f_a_proj(x_BTD))
        gate = self.g_b_proj(self.g_a_proj(x_BTD))
        beta = self.b_proj(x_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            raw = F.pad(raw.float(), (0, 0, shape.conv - 1, 0))
            mixed = sum(raw[:, j : j + num_T] * taps[:, 0, j] for j in range(shape.conv))
            q, k, v = (part.view(heads) for part in F.silu(mixed).chunk(3, -1))
            forget = (forget.float() + self.dt_bias).view(heads)
            g = shape.bound * torch.sigmoid(self.A_log.exp()[:, None] * forget)
            out = blocked_delta_rule(
                unit(q) * shape.kda_dim**-0.5, unit(k), v, g, torch.sigmoid(beta.float())
            )
            out = self.o_norm(out) * torch.sigmoid(gate.float().view(heads))
        return self.o_proj(out.flatten(2).to(gate.dtype))
