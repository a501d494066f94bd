"""What a golden of this family holds, and how a run is compared with it (`tensorfold parity`).

Selections are compared as sets; states under the names the golden gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tensorfold.core.family_api import Cut, Mode, Rows
from tensorfold.families.glm53.config import GRID, Config
from tensorfold.families.glm53.draft import Mtp
from tensorfold.families.glm53.model import Glm53
from tensorfold.families.glm53.weights import Dsa

MODES: Sequence[Mode] = (Mode(numerics="", logits="logits", tolerance=5e-5),)


def cuts(length: int) -> dict[str, list[Cut]]:
    """Ways to run `length` rows: whole, cut on the grid, windows of 2 and 3, token by token."""
    pieces = [Cut("prompt", min(GRID, length - start)) for start in range(0, length, GRID)]
    twos = min(10, length // 8)
    threes = min(20, (length - 2 * twos) // 6)
    first = length - 2 * twos - 3 * threes
    windows = [Cut("prompt", first)]
    windows += [Cut("window", 2)] * twos + [Cut("window", 3)] * threes
    return {
        "whole": [Cut("prompt", length)],
        "pieces": pieces,
        "windows": windows,
        "token by token": [Cut("prompt", 1)] + [Cut("window", 1)] * (length - 1),
    }


def selections(model: Glm53, rows: int) -> dict[str, list[set[int]]]:
    """The token lists of the last forward's first rows, under the golden's names."""
    return {
        f"topk.{layer}": [set(listed) - {-1} for listed in list_RK[:rows].tolist()]
        for layer, list_RK in model.lists.items()
    }


def as_sets(name: str, golden: Tensor) -> list[set[int]]:
    assert name.startswith("topk."), name
    return [set(listed) - {-1} for listed in golden.tolist()]


def states(
    model: Glm53, state: Mapping[str, Tensor], golden: Mapping[str, Tensor], length: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Pairs (ours, golden's) of every state that the golden holds, after `length` rows.

    `state` is one stream's: per-token rows in order, its ring and fixed states.
    """
    config = model.config
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for layer in range(config.layers):
        if f"kda_state.{layer}" in golden:
            pairs[f"kda_state.{layer}"] = (state[f"kda.{layer}"], golden[f"kda_state.{layer}"])
        if f"conv_state.{layer}" in golden:
            history_CH = golden[f"conv_state.{layer}"][:, 1 - config.conv :]
            pairs[f"conv_state.{layer}"] = (state[f"conv.{layer}"].T, history_CH)
        if f"latent.{layer}" in golden:
            latents = state[f"latent.{layer}"][:length]
            pairs[f"latent.{layer}"] = (latents, golden[f"latent.{layer}"])
        if f"indexer.{layer}" in golden:
            pairs[f"indexer.{layer}"] = index_state(model, state, golden, layer, length)
    return pairs


def index_state(
    model: Glm53, state: Mapping[str, Tensor], golden: Mapping[str, Tensor], layer: int, length: int
) -> tuple[Tensor, Tensor]:
    """Closed pools and the open pool's rows, against the golden's raw (key, gate) rows."""
    config: Config = model.config
    raw = golden[f"indexer.{layer}"][:, : 2 * config.index_size]
    closed = length // config.pool
    if raw.shape != (length, 2 * config.index_size):
        return state[f"pool.{layer}"], raw
    members = raw[: closed * config.pool].view(closed, config.pool, 2, config.index_size)
    attention = model.weights.layers[layer].attention
    assert isinstance(attention, Dsa)
    weights = torch.softmax(members[:, :, 1] + attention.ape_MD, 1)
    pools = (weights * members[:, :, 0]).sum(1)
    tail = state[f"tail.{layer}"]
    rows = [position % tail.shape[0] for position in range(closed * config.pool, length)]
    ours = [state[f"pool.{layer}"][:closed].flatten(), tail[rows].flatten()]
    return torch.cat(ours), torch.cat([pools.flatten(), raw[closed * config.pool :].flatten()])


def draft_logits(
    model: Glm53, state: Mapping[str, Tensor], rows: Rows, hidden_RD: Tensor
) -> Tensor:
    """The MTP layer's logits; ids_R of `rows` are the tokens after the hidden rows' own."""
    mtp = Mtp(model.config, model.weights, model.ops, state)
    return mtp.logits(mtp.forward(rows, hidden_RD))


def names(config: Config) -> Sequence[str]:
    """Everything a golden of this family can hold besides ids."""
    found = ["logits", "hidden"]
    for layer, linear in enumerate(config.linear):
        kinds = ("kda_state", "conv_state") if linear else ("topk", "latent", "indexer")
        found += [f"{kind}.{layer}" for kind in kinds]
    return [*found, "mtp_logits"] if config.mtp_layers else found
