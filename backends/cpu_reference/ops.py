"""The op table on the CPU: the references' mathematics in row-exact formulations.

Each function has its reference's signature behind a `Products` argument; docstrings say only what
differs. Sums inside a row run over fixed shapes, ties are broken by the lowest index, and SiLU and
sigmoid are written out, since the library's depend on an element's place in memory.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorfold.backends.cpu_reference.products import Products, pad_rows
from tensorfold.core.ops.engram_gate import gate_of
from tensorfold.core.ops.hc_split import sigmoid
from tensorfold.core.ops.linear_parts import tree
from tensorfold.core.ops.route_softplus import chances


def linear(p: Products, x_RK: Tensor, w_NK: Tensor) -> Tensor:
    return p.rows(x_RK, w_NK)


def by_batch(p: Products, x_RPK: Tensor, w_PKN: Tensor) -> Tensor:
    """[R, P, K] and [P, K, N] to [P, R, N], rows padded to the tile."""
    rows = x_RPK.shape[0]
    return p.batch(pad_rows(x_RPK, p.tile).transpose(0, 1), w_PKN)[:, :rows]


def linear_parts(p: Products, x_RK: Tensor, w_PKN: Tensor) -> Tensor:
    return tree(by_batch(p, x_RK.reshape(x_RK.shape[0], w_PKN.shape[0], -1), w_PKN))


def linear_heads(p: Products, x_RHK: Tensor, w_HKN: Tensor) -> Tensor:
    return by_batch(p, x_RHK, w_HKN).transpose(0, 1).contiguous()


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def rms_norm_apart(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Each row in a call of its own: the fallback."""
    return torch.stack([rms_norm(row[None], weight, eps)[0] for row in x])


def layer_norm(x_RD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x_RD, x_RD.shape[-1:], weight_D, bias_D, eps)


def layer_norm_apart(x_RD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    """Each row in a call of its own: the fallback."""
    return torch.stack([layer_norm(row[None], weight_D, bias_D, eps)[0] for row in x_RD])


@functools.cache
def sum_masks(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[n * n, n * n] matrices that replace a flat matrix's entries by their row and column sums."""
    eye, ones = torch.eye(n, dtype=dtype), torch.ones(n, n, dtype=dtype)
    return torch.kron(eye, ones), torch.kron(ones, eye)


def sinkhorn(p: Products, comb_RM: Tensor, n: int, eps: float, iterations: int) -> Tensor:
    """Doubly stochastic [R, n * n] from positive entries; each half-step is a product and a
    division, which costs two small ops where sums would take three."""
    rows_MM, columns_MM = sum_masks(n, comb_RM.dtype)
    if not p.library:
        for step in range(2 * iterations - 1):
            comb_RM = comb_RM / (p.rows(comb_RM, columns_MM if step % 2 == 0 else rows_MM) + eps)
        return comb_RM
    rows = comb_RM.shape[0]
    comb_RM = pad_rows(comb_RM, p.tile)
    eps_M = comb_RM.new_full((n * n,), eps)
    total = torch.empty_like(comb_RM)
    for step in range(2 * iterations - 1):
        torch.addmm(eps_M, comb_RM, columns_MM if step % 2 == 0 else rows_MM, out=total)
        comb_RM = comb_RM / total
    return comb_RM[:rows]


def hc_split(
    p: Products,
    x_RND: Tensor,
    fn_MF: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    pre_RN, post_RN, comb_RNN = hc_mix(p, x_RND, fn_MF, base_M, scale_3, norm_eps, eps, iterations)
    return hc_collapse(p, x_RND, pre_RN), post_RN, comb_RNN


def hc_mix(
    p: Products,
    x_RND: Tensor,
    fn_MF: Tensor,
    base_M: Tensor,
    scale_3: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, n, _ = x_RND.shape
    norm = rms_norm if p.library else rms_norm_apart
    z_RM = p.rows(norm(x_RND.reshape(rows, -1), None, norm_eps), fn_MF)
    pre_RN = sigmoid(z_RM[:, :n] * scale_3[0] + base_M[:n]) + eps
    post_RN = 2 * sigmoid(z_RM[:, n : 2 * n] * scale_3[1] + base_M[n : 2 * n])
    comb_RNN = (z_RM[:, 2 * n :] * scale_3[2] + base_M[2 * n :]).view(rows, n, n)
    comb_RM = (torch.softmax(comb_RNN, -1) + eps).view(rows, n * n)
    comb_RM = sinkhorn(p, comb_RM, n, eps, iterations)
    return pre_RN, post_RN, comb_RM.view(rows, n, n)


def hc_collapse(p: Products, x_RND: Tensor, pre_RN: Tensor) -> Tensor:
    return p.batch(pre_RN[:, None], x_RND)[:, 0]


def hc_join(p: Products, y_RD: Tensor, x_RND: Tensor, post_RN: Tensor, comb_RNN: Tensor) -> Tensor:
    mixed_RND = p.batch(comb_RNN.transpose(1, 2), x_RND)
    return mixed_RND.addcmul_(post_RN[:, :, None], y_RD[:, None])


def short_conv(u_RC: Tensor, history_LHC: Tensor, source_RT: Tensor, taps_CT: Tensor) -> Tensor:
    rows = torch.cat([history_LHC.flatten(0, 1), u_RC])
    taps = taps_CT.shape[1]
    y_RC = torch.zeros_like(u_RC)
    for tap in range(taps):
        y_RC = y_RC + rows.index_select(0, source_RT[:, tap]) * taps_CT[:, tap]
    return y_RC / (1 + torch.exp(-y_RC))


def pool_keys(keys_PMD: Tensor, gates_PMD: Tensor, ape_MD: Tensor) -> Tensor:
    """The softmax over members is written out: members are few and lie across the row."""
    logit_PMD = gates_PMD + ape_MD
    raised_PMD = torch.exp(logit_PMD - logit_PMD.amax(1, keepdim=True))
    total_PD = raised_PMD[:, 0]
    weighted_PD = raised_PMD[:, 0] * keys_PMD[:, 0]
    for member in range(1, keys_PMD.shape[1]):
        total_PD = total_PD + raised_PMD[:, member]
        weighted_PD = weighted_PD + raised_PMD[:, member] * keys_PMD[:, member]
    return weighted_PD / total_PD


def route(
    logit_RE: Tensor, bias_E: Tensor, top: int, scale: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    return picked(sigmoid(logit_RE), bias_E, top, scale, normalise)


def route_softplus(
    logit_RE: Tensor, bias_E: Tensor, top: int, scale: float
) -> tuple[Tensor, Tensor]:
    return picked(chances(logit_RE), bias_E, top, scale, True)


def picked(
    chance_RE: Tensor, bias_E: Tensor, top: int, scale: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    order_RE = torch.sort(chance_RE + bias_E, dim=-1, descending=True, stable=True).indices
    ids_RK = order_RE[:, :top].sort(-1).values
    weight_RK = torch.gather(chance_RE, 1, ids_RK)
    if normalise:
        total_R = weight_RK[:, 0]
        for pick in range(1, top):
            total_R = total_R + weight_RK[:, pick]
        weight_RK = weight_RK / (total_R[:, None] + 1e-20)
    return ids_RK, weight_RK * scale


def engram_gate(
    x_RND: Tensor, key_RND: Tensor, value_RD: Tensor, weight_ND: Tensor, open_R: Tensor, eps: float
) -> Tensor:
    """Both norms are taken before the dot, which changes no more than its last bits."""
    dot_RN = (rms_norm(x_RND, None, eps) * weight_ND * rms_norm(key_RND, None, eps)).sum(-1)
    gate_RN = gate_of(dot_RN * x_RND.shape[-1] ** -0.5) * open_R[:, None]
    return x_RND + gate_RN[..., None] * value_RD[:, None]


def engram_gate_apart(
    x_RND: Tensor, key_RND: Tensor, value_RD: Tensor, weight_ND: Tensor, open_R: Tensor, eps: float
) -> Tensor:
    """Each row in a call of its own: the fallback."""
    rows = [
        engram_gate(x[None], key[None], value[None], weight_ND, opened[None], eps)
        for x, key, value, opened in zip(x_RND, key_RND, value_RD, open_R, strict=True)
    ]
    return torch.cat(rows)


def exp_sums(x_SV: Tensor, most_S: Tensor) -> tuple[Tensor, Tensor]:
    """Each row by itself: the library's sum of one row has one order a width."""
    pairs = zip(x_SV.unbind(), most_S.unbind(), strict=True)
    rows = [torch.exp(x_V - most) for x_V, most in pairs]
    if not rows:
        return torch.empty_like(x_SV), torch.empty_like(most_S)
    return torch.stack(rows), torch.stack([row.sum() for row in rows])


def running_sums(x_CH: Tensor) -> Tensor:
    """The library's scan is of each row from its beginning on."""
    return x_CH.cumsum(-1)
