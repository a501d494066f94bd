"""The index and the attention over token lists on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from tensorfold.backends.cpu_reference.products import Products
from tensorfold.core.ops.pick_tokens import list_width, slots

# Rows that gather their keys at once; bounds the memory of a long prompt.
CHUNK = 32
# List entries of one fixed product in the fallback form.
ENTRIES = 64
# Entries of one product's sum: libraries cut longer sums where the length says, and a list's
# padding may not move a cut.
SUMMED = 128
# Pools of one product: what lies beyond comes in runs of exactly as many.
POOLS = 2048


def by_chunk(rows: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, rows)) for start in range(0, rows, CHUNK)]


def pick_tokens(
    p: Products,
    q_RHD: Tensor,
    weight_RH: Tensor,
    pools_SD: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    position_R: Tensor,
    top: int,
    pool: int,
    page: int,
    width: int,
) -> Tensor:
    chunks = []
    for rows in by_chunk(q_RHD.shape[0]):
        keys_RPD = pools_of(pools_SD, table_LP[lane_R[rows]], pool, page, width)
        score_RP = scores(p, q_RHD[rows], weight_RH[rows], keys_RPD)
        seen_R1 = position_R[rows, None] + 1
        kept_RP = best(score_RP, seen_R1 // pool, top)
        chunks.append(as_list(kept_RP, seen_R1, pool, list_width(top, pool, width)))
    return torch.cat(chunks)


def pools_of(pools_SD: Tensor, table_RP: Tensor, pool: int, page: int, width: int) -> Tensor:
    """Pool keys [R, pools, D] of the first `width` tokens of the rows' streams."""
    per_page = page // pool
    paged = pools_SD.view(-1, per_page * pools_SD.shape[1])
    pages = -(-width // page)
    keys = paged[table_RP[:, :pages]].view(table_RP.shape[0], pages * per_page, -1)
    return keys[:, : -(-width // pool)]


def scores(p: Products, q_RHD: Tensor, weight_RH: Tensor, keys_RPD: Tensor) -> Tensor:
    """sum over h of weight[h] * relu(q[h] . key), [R, P]."""
    if p.library:
        runs = keys_RPD.split(POOLS, 1)
        dots = [p.batch(q_RHD, run.transpose(1, 2)) for run in runs]
        dots_RHP = torch.relu(torch.cat(dots, -1) if len(dots) > 1 else dots[0])
    else:
        parts = fixed_parts(keys_RPD, 1)
        dots = [p.batch(q_RHD, part.transpose(1, 2).contiguous()) for part in parts]
        dots_RHP = torch.relu(torch.cat(dots, -1)[..., : keys_RPD.shape[1]])
    total_RP = weight_RH[:, :1] * dots_RHP[:, 0]
    for head in range(1, q_RHD.shape[1]):
        total_RP = total_RP + weight_RH[:, head : head + 1] * dots_RHP[:, head]
    return total_RP


def fixed_parts(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Runs of exactly `ENTRIES` along an axis, the last padded with zeros."""
    missing = -x.shape[dim] % ENTRIES
    shape = list(x.shape)
    shape[dim] = missing
    return torch.cat([x, x.new_zeros(shape)], dim).split(ENTRIES, dim)


def best(score_RP: Tensor, candidates_R1: Tensor, top: int) -> Tensor:
    """Mask of the `top` best of each row's first candidates, ties to the lowest pool."""
    candidate_RP = torch.arange(score_RP.shape[1], device=score_RP.device) < candidates_R1
    return best_of(score_RP, candidate_RP, top)


def best_of(score_RP: Tensor, candidate_RP: Tensor, top: int) -> Tensor:
    """Mask of the `top` best of each row's candidates, ties to the lowest place."""
    if score_RP.shape[1] <= top:
        return candidate_RP
    score_RP = score_RP.masked_fill(~candidate_RP, float("-inf"))
    least_R1 = torch.topk(score_RP, top, sorted=True).values[:, -1:]
    above_RP = score_RP > least_R1
    level_RP = (score_RP == least_R1) & candidate_RP
    room_R1 = top - above_RP.sum(1, keepdim=True)
    return above_RP | (level_RP & (level_RP.cumsum(1) <= room_R1))


def as_list(kept_RP: Tensor, seen_R1: Tensor, pool: int, width: int) -> Tensor:
    """Ascending token ids of kept pools and of the open pool's tail, -1 past the end."""
    token_K = torch.arange(kept_RP.shape[1] * pool, device=kept_RP.device)
    tail_RK = (token_K >= seen_R1 // pool * pool) & (token_K < seen_R1)
    return ascending(kept_RP.repeat_interleave(pool, 1) | tail_RK, width)


def ascending(mask_RN: Tensor, width: int) -> Tensor:
    """The marked places of each row, at most `width`, -1 past the end."""
    place_RN = torch.where(mask_RN, mask_RN.cumsum(1) - 1, width)
    rows, places = mask_RN.shape
    listed = torch.full((rows, width + 1), -1, dtype=torch.int64, device=mask_RN.device)
    listed.scatter_(1, place_RN, torch.arange(places, device=mask_RN.device).expand(rows, -1))
    return listed[:, :width]


def latent_attention(
    p: Products,
    q_RHC: Tensor,
    latents_SC: Tensor,
    table_LP: Tensor,
    lane_R: Tensor,
    list_RK: Tensor,
    page: int,
    scale: float,
) -> Tensor:
    attend = attend_whole if p.library else attend_in_parts
    # Heads are the rows of these products, and a rank may hold few of them.
    heads = q_RHC.shape[1]
    q_RHC = pad_heads(q_RHC, p.tile)
    chunks = []
    for rows in by_chunk(q_RHC.shape[0]):
        list_rK = list_RK[rows]
        slot_RK = slots(list_rK.clamp(min=0), lane_R[rows], table_LP, page)
        latents = latents_SC.index_select(0, slot_RK.flatten())
        latents_RKC = latents.view(*slot_RK.shape, -1)
        chunks.append(attend(p, q_RHC[rows], latents_RKC, (list_rK < 0)[:, None], scale))
    return torch.cat(chunks)[:, :heads]


def pad_heads(q_RHC: Tensor, tile: int) -> Tensor:
    """Zero heads up to a multiple of `tile`."""
    rows, heads, size = q_RHC.shape
    missing = -heads % tile
    return torch.cat([q_RHC, q_RHC.new_zeros(rows, missing, size)], 1) if missing else q_RHC


def attend_whole(
    p: Products, q_RHC: Tensor, latents_RKC: Tensor, unused_R1K: Tensor, scale: float
) -> Tensor:
    score_RHK = p.batch(q_RHC, latents_RKC.transpose(1, 2)) * scale
    score_RHK = score_RHK.masked_fill_(unused_R1K, float("-inf"))
    weight_RHK = torch.softmax(score_RHK, -1)
    if weight_RHK.shape[2] <= SUMMED:
        return p.batch(weight_RHK, latents_RKC)
    mixed_RHC = torch.zeros_like(q_RHC)
    for weight, latents in zip(
        weight_RHK.split(SUMMED, 2), latents_RKC.split(SUMMED, 1), strict=True
    ):
        mixed_RHC = mixed_RHC + p.batch(weight, latents)
    return mixed_RHC


def attend_in_parts(
    p: Products, q_RHC: Tensor, latents_RKC: Tensor, unused_R1K: Tensor, scale: float
) -> Tensor:
    """Runs of `ENTRIES` list entries, added in order: unused runs add zeros, so that a list's
    padding cannot reach a row's bits."""
    unused = fixed_parts(~unused_R1K, 2)
    runs = fixed_parts(latents_RKC, 1)
    score = [
        (p.batch(q_RHC, run.transpose(1, 2).contiguous()) * scale).masked_fill(~used, float("-inf"))
        for run, used in zip(runs, unused, strict=True)
    ]
    most_RH1 = torch.stack([part.amax(-1, keepdim=True) for part in score]).amax(0)
    total_RH1 = torch.zeros_like(most_RH1)
    mixed_RHC = torch.zeros_like(q_RHC)
    for part, run in zip(score, runs, strict=True):
        raised = torch.exp(part - most_RH1)
        total_RH1 = total_RH1 + raised.sum(-1, keepdim=True)
        mixed_RHC = mixed_RHC + p.batch(raised, run.contiguous())
    return mixed_RHC / total_RH1
