"""What a stream of this family keeps (spec glm53, section 3), and one layer's views of it.

A KDA layer keeps the recurrent state and the last rows before its convolution. A DSA layer keeps
a latent a token, a pooled index key for every `pool` tokens, and the raw (key, gate) rows of the
open pool: a ring with room for a window, because rejected rows may have closed pools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tensorfold.core.state_spec import Fixed, PerToken, Ring, StateSpec
from tensorfold.families.glm53.config import GRID, Config

if TYPE_CHECKING:
    from torch import Tensor


class KdaState(NamedTuple):
    """state_LHKV and the convolution's history_LHC, oldest row first."""

    state_LHKV: Tensor
    history_LHC: Tensor


class DsaState(NamedTuple):
    """latents_SC and pools_SD by page, tail_LTE by lane: (key, gate) of the last T positions."""

    latents_SC: Tensor
    pools_SD: Tensor
    tail_LTE: Tensor


def tail_rows(config: Config, window_rows: int) -> int:
    """Ring rows that a window of `window_rows` cannot overwrite before its rollback."""
    return -(-(config.pool - 1 + window_rows) // config.pool) * config.pool


def spec(config: Config, *, window_rows: int, drafts: bool = False) -> StateSpec:
    """The state of all layers; with `drafts`, of the MTP layer too (its index is `layers`)."""
    entries: list[PerToken | Ring | Fixed] = []
    inner = config.kda_heads * config.kda_size
    kinds = list(config.linear) + [False] * (config.mtp_layers if drafts else 0)
    for layer, linear in enumerate(kinds):
        if linear:
            size = config.kda_size
            shape = (config.kda_heads, size, size)
            entries.append(Fixed(name=f"kda.{layer}", shape=shape, dtype="float32"))
            entries.append(Fixed(name=f"conv.{layer}", shape=(config.conv - 1, 3 * inner)))
        else:
            rows = tail_rows(config, window_rows)
            entries.append(PerToken(name=f"latent.{layer}", width=config.kv_rank))
            entries.append(
                PerToken(name=f"pool.{layer}", width=config.index_size, every=config.pool)
            )
            entries.append(Ring(name=f"tail.{layer}", rows=rows, width=2 * config.index_size))
    return StateSpec(page=GRID, entries=tuple(entries), blocks=True)


def layer_state(state: Mapping[str, Tensor], layer: int, linear: bool) -> KdaState | DsaState:
    """One layer's buffers."""
    if linear:
        return KdaState(state_LHKV=state[f"kda.{layer}"], history_LHC=state[f"conv.{layer}"])
    return DsaState(
        latents_SC=state[f"latent.{layer}"],
        pools_SD=state[f"pool.{layer}"],
        tail_LTE=state[f"tail.{layer}"],
    )
