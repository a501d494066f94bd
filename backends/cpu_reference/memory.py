"""Attention over a window and listed rows, and the index that lists them, on the CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorfold.backends.cpu_reference.products import Products
from tensorfold.backends.cpu_reference.sparse import (
    ascending,
    best_of,
    by_chunk,
    pad_heads,
    pools_of,
    scores,
)


def pick_rows(
    p: Products,
    q_RHD: Tensor,
    weight_RH: Tensor,
    keys_SD: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    visible_R: Tensor,
    blocks_RB: Tensor,
    top: int,
    keep: int,
    size: int,
    page: int,
    width: int,
) -> tuple[Tensor, Tensor]:
    lists, kept = [], []
    for rows in by_chunk(q_RHD.shape[0]):
        keys_RJD = pools_of(keys_SD, table_LP[lane_R[rows]], 1, page, width)
        score_RJ = scores(p, q_RHD[rows], weight_RH[rows], keys_RJD)
        visible_R1 = visible_R[rows, None]
        seen_RJ = torch.arange(width, device=lane_R.device) < visible_R1
        kept.append(ascending(kept_blocks(score_RJ, seen_RJ, visible_R1, keep, size), keep))
        if blocks_RB.shape[1]:
            seen_RJ = seen_RJ & inside(blocks_RB[rows], size, width)
        lists.append(ascending(best_of(score_RJ, seen_RJ, top), top))
    return torch.cat(lists), torch.cat(kept)


def inside(blocks_RB: Tensor, size: int, width: int) -> Tensor:
    """Mask [R, width] of the rows in listed blocks; an entry of -1 falls into a spare block."""
    blocks = -(-width // size)
    mask = torch.zeros(blocks_RB.shape[0], blocks + 1, dtype=torch.bool, device=blocks_RB.device)
    mask.scatter_(1, torch.where(blocks_RB < 0, blocks, blocks_RB), True)
    return mask[:, :blocks].repeat_interleave(size, 1)[:, :width]


def kept_blocks(
    score_RJ: Tensor, seen_RJ: Tensor, visible_R1: Tensor, keep: int, size: int
) -> Tensor:
    """Mask [R, blocks] of the `keep` best blocks, the newest one among them."""
    blocks = -(-score_RJ.shape[1] // size) if keep else 0
    if not blocks:
        return seen_RJ[:, :0]
    padded = score_RJ.new_full((score_RJ.shape[0], blocks * size), float("-inf"))
    padded[:, : score_RJ.shape[1]] = score_RJ.masked_fill(~seen_RJ, float("-inf"))
    block_RB = padded.unflatten(1, (blocks, size)).amax(-1)
    newest_R1 = (visible_R1 - 1).clamp(min=0) // size
    raised = torch.where(visible_R1 > 0, float("inf"), float("-inf")).to(score_RJ.dtype)
    block_RB = block_RB.scatter(1, newest_R1, raised)
    return best_of(block_RB, block_RB > float("-inf"), keep)


def sink_attention(
    p: Products,
    q_RHC: Tensor,
    ring_SC: Tensor,
    new_TC: Tensor,
    window_RW: Tensor,
    memory_SC: Tensor,
    list_RK: Tensor,
    sink_H: Tensor,
    scale: float,
) -> Tensor:
    """Windows and lists have one width always, so a sum's cut cannot move."""
    recent_SC = torch.cat([ring_SC, new_TC])
    chunks = []
    heads = q_RHC.shape[1]
    q_RHC = pad_heads(q_RHC, p.tile)
    sink_H = F.pad(sink_H, (0, q_RHC.shape[1] - heads))
    for rows in by_chunk(q_RHC.shape[0]):
        window, listed = window_RW[rows].clamp(min=0), list_RK[rows].clamp(min=0)
        unused_RN = torch.cat([window_RW[rows], list_RK[rows]], 1) < 0
        key_RNC = torch.cat([recent_SC[window], memory_SC[listed]], 1)
        key_RNC = key_RNC.masked_fill_(unused_RN[..., None], 0)
        score_RHN = p.batch(q_RHC[rows], key_RNC.transpose(1, 2).contiguous()) * scale
        score_RHN = score_RHN.masked_fill_(unused_RN[:, None], float("-inf"))
        most_RH1 = score_RHN.amax(-1, keepdim=True)
        raised_RHN = torch.exp(score_RHN - most_RH1)
        total_RH1 = raised_RHN.sum(-1, keepdim=True) + torch.exp(sink_H[:, None] - most_RH1)
        chunks.append(p.batch(raised_RHN, key_RNC) / total_RH1)
    return torch.cat(chunks)[:, :heads]
