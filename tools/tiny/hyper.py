"""Hyper-connections: how a half-layer reads and writes the parallel residual streams.

Legend: B sequences, T rows, N streams (I read, J written), D hidden width.
"""

import torch
from torch import Tensor, nn


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

    def __init__(
        self, *, streams: int, hidden: int, sinkhorn: int, hc_eps: float, eps: float
    ) -> None:
        super().__init__()
        self.streams, self.sinkhorn, self.hc_eps, self.eps = streams, sinkhorn, hc_eps, eps
        self.fn = nn.Parameter(torch.empty(2 * streams + streams**2, streams * hidden))
        self.base = nn.Parameter(torch.empty(2 * streams + streams**2))
        self.scale = nn.Parameter(torch.empty(3))

    def mixes(self, streams_BTND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How the streams are read [B, T, N], written [B, T, N] and mixed [B, T, N, N], in fp32."""
        num_N = self.streams
        flat = streams_BTND.flatten(2).float()
        flat = flat * (flat.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        pre, post, mix = (flat @ self.fn.T).split([num_N, num_N, num_N**2], -1)
        base = self.base.split([num_N, num_N, num_N**2])
        pre = torch.sigmoid(pre * self.scale[0] + base[0]) + self.hc_eps
        post = 2 * torch.sigmoid(post * self.scale[1] + base[1])
        mix = (mix * self.scale[2] + base[2]).unflatten(-1, (num_N, num_N))
        return pre, post, sinkhorn(mix, self.sinkhorn, self.hc_eps)

    def read(self, streams_BTND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The half-layer's input [B, T, D] and what `write` needs, all fp32."""
        pre, post, mix = self.mixes(streams_BTND)
        return collapse(streams_BTND, pre), post, mix


def collapse(streams_BTND: Tensor, pre_BTN: Tensor) -> Tensor:
    return (pre_BTN[..., None] * streams_BTND).sum(-2)


def write(y_BTD: Tensor, streams_BTND: Tensor, post_BTN: Tensor, mix_BTIJ: Tensor) -> Tensor:
    kept = (mix_BTIJ[..., None] * streams_BTND[..., :, None, :]).sum(-3)
    return post_BTN[..., None] * y_BTD[..., None, :].float() + kept


def start_streams(hyper: Hyper, turn: int, num_N: int) -> None:
    """Each half-layer leans on reading a stream of its own; streams otherwise pass unmixed."""
    hyper.scale.fill_(0.1)
    hyper.base.zero_()
    hyper.base[:num_N] = -2.0
    hyper.base[turn % num_N] = 1.0
    mix_NN = hyper.base[2 * num_N :].view(num_N, num_N)
    mix_NN.fill_diagonal_(4.0)
