"""Hyper-connections: how a half-layer reads and writes the parallel residual streams.

Legend: B sequences, T rows, N streams (I read, J written), D hidden width.
"""

import torch
from torch import Tensor, nn

from tensorfold.tools.tiny.shape import Shape


def sinkhorn_plain(logits_NN: Tensor, iterations: int, eps: float) -> Tensor:
    """Softmax of [..., N, N] made doubly stochastic: columns first, `iterations` times."""
    c = logits_NN.softmax(-1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


def sinkhorn(logits_NN: Tensor, iterations: int, eps: float) -> Tensor:
    if logits_NN.is_cuda:
        from tensorfold.tools.tiny.sinkhorn_cuda import balance

        return balance(logits_NN, iterations, eps)[0]
    return sinkhorn_plain(logits_NN, iterations, eps)


class Hyper(nn.Module):
    """The coefficients of one half-layer; official names hc_{attn,ffn}_{fn,base,scale}."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        num_N = shape.streams
        self.fn = nn.Parameter(torch.empty(2 * num_N + num_N**2, num_N * shape.hidden))
        self.base = nn.Parameter(torch.empty(2 * num_N + num_N**2))
        self.scale = nn.Parameter(torch.empty(3))

    def read(self, streams_BTND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The half-layer's input [B, T, D] and what `write` needs, all fp32."""
        shape, num_N = self.shape, self.shape.streams
        flat = streams_BTND.flatten(2).float()
        flat = flat * (flat.square().mean(-1, keepdim=True) + shape.eps).rsqrt()
        pre, post, mix = (flat @ self.fn.T).split([num_N, num_N, num_N**2], -1)
        base = self.base.split([num_N, num_N, num_N**2])
        pre = torch.sigmoid(pre * self.scale[0] + base[0]) + shape.hc_eps
        post = 2 * torch.sigmoid(post * self.scale[1] + base[1])
        mix = (mix * self.scale[2] + base[2]).unflatten(-1, (num_N, num_N))
        mix = sinkhorn(mix, shape.sinkhorn, shape.hc_eps)
        return (pre[..., None] * streams_BTND).sum(-2), post, mix


def write(y_BTD: Tensor, streams_BTND: Tensor, post_BTN: Tensor, mix_BTIJ: Tensor) -> Tensor:
    kept = (mix_BTIJ[..., None] * streams_BTND[..., :, None, :]).sum(-3)
    return post_BTN[..., None] * y_BTD[..., None, :].float() + kept
