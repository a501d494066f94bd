"""Hyper-connections, before a sublayer: its input, and how its output returns to the streams.

Source: mHC as glm5_next uses it (spec glm53 2.2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.core.ops.contract import Case, OpSpec, normal


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def mixes(
    x_RND: Tensor,
    fn_MF: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Streams [R, N, D] to pre [R, N], post [R, N] and comb [R, N, N].

    fn is [2N + N * N, N * D]. comb is made doubly stochastic by `iterations` Sinkhorn steps, the
    first of which divides by column sums alone.
    """
    rows, n, _ = x_RND.shape
    flat_RF = x_RND.reshape(rows, -1)
    flat_RF = flat_RF / torch.sqrt(flat_RF.square().mean(-1, keepdim=True) + norm_eps)
    z_RM = flat_RF @ fn_MF.T
    pre_RN = sigmoid(z_RM[:, :n] * scale_3[0] + base_M[:n]) + eps
    post_RN = 2 * sigmoid(z_RM[:, n : 2 * n] * scale_3[1] + base_M[n : 2 * n])
    comb_RNN = (z_RM[:, 2 * n :] * scale_3[2] + base_M[2 * n :]).reshape(rows, n, n)
    comb_RNN = torch.softmax(comb_RNN, -1) + eps
    comb_RNN = comb_RNN / (comb_RNN.sum(1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb_RNN = comb_RNN / (comb_RNN.sum(2, keepdim=True) + eps)
        comb_RNN = comb_RNN / (comb_RNN.sum(1, keepdim=True) + eps)
    return pre_RN, post_RN, comb_RNN


def reference(
    x_RND: Tensor,
    fn_MF: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Streams [R, N, D] to the sublayer's input [R, D], and post and comb of `mixes`, which have
    the format of fn."""
    pre_RN, *after = mixes(x_RND, fn_MF, base_M, scale_3, norm_eps, eps, iterations)
    return torch.einsum("rn,rnd->rd", pre_RN, x_RND), after[0], after[1]


def shape(
    x_RND: Tensor,
    fn_MF: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, n, d = x_RND.shape
    return x_RND.new_empty(rows, d), fn_MF.new_empty(rows, n), fn_MF.new_empty(rows, n, n)


def cases(generator: torch.Generator) -> list[Case]:
    found = []
    for n, d in ((4, 256), (4, 64), (2, 48)):
        outputs = 2 * n + n * n
        args = {
            "x_RND": normal(generator, 328, n, d),
            "fn_MF": normal(generator, outputs, n * d, scale=(n * d) ** -0.5),
            "base_M": normal(generator, outputs, scale=0.5),
            "scale_3": normal(generator, 3, scale=0.2) + 1,
            "norm_eps": 1e-5,
            "eps": 1e-6,
            "iterations": 20,
        }
        found.append(Case(name=f"{n}x{d}", args=args, rows=("x_RND",), budget=5e-6))
    return found


OP = OpSpec(
    name="hc_split",
    schema=(
        "(Tensor x, Tensor fn, Tensor base, Tensor scale, float norm_eps, float eps,"
        " int iterations) -> (Tensor, Tensor, Tensor)"
    ),
    reference=reference,
    shape=shape,
    cases=cases,
    wide=("fn_MF", "base_M", "scale_3"),
)
