"""What a stream of this family keeps (spec dsv41, section 3), and one layer's views of it.

Everything is addressed by position: a rejected row's values lie where the row that takes its
place will write, so nothing is undone when a window is cut back. Rings have room for a window's
rows beside what its first row reads, so that rejected rows replace nothing a later row needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tensorfold.core.state_spec import PerToken, Ring, StateSpec
from tensorfold.families.dsv41.config import PAGE, Config

if TYPE_CHECKING:
    from torch import Tensor

# The ring of token ids that n-grams of rows to come begin with.
IDS = "ids"


class SourceState(NamedTuple):
    """Compressed rows latents_SC and their index keys_SD by page; open_LTE: the raw value and gate
    of the last T positions by lane, none at ratio 1."""

    latents_SC: Tensor
    keys_SD: Tensor
    open_LTE: Tensor | None


def ring_rows(back: int, window_rows: int) -> int:
    """Rows of a ring whose readers look at `back` positions, their own included."""
    return back - 1 + window_rows


def spec(config: Config, *, window_rows: int, drafts: bool = False) -> StateSpec:
    """The state of all layers; with `drafts`, of the draft stages' windows too."""
    size = config.head_size
    window = ring_rows(config.window, window_rows)
    entries: list[PerToken | Ring] = [
        Ring(name=f"window.{layer}", rows=window, width=size) for layer in range(config.layers)
    ]
    for layer in config.kv_sources:
        ratio = config.ratios[layer]
        entries.append(PerToken(name=f"latent.{layer}", width=size, every=ratio))
        entries.append(PerToken(name=f"key.{layer}", width=config.index_size, every=ratio))
        if ratio > 1:
            rows = ring_rows(ratio, window_rows)
            entries.append(Ring(name=f"open.{layer}", rows=rows, width=2 * size, dtype="float32"))
    if config.engram:
        rows = ring_rows(config.engram.orders + 1, window_rows)
        entries.append(Ring(name=IDS, rows=rows, width=1, dtype="int64"))
    for stage in range(config.drafting.stages if config.drafting and drafts else 0):
        # A drafted block reads a whole window before its own rows.
        rows = ring_rows(config.window + 1, window_rows)
        entries.append(Ring(name=f"draft.{stage}", rows=rows, width=size))
    return StateSpec(page=PAGE, entries=tuple(entries))


def source_state(config: Config, state: Mapping[str, Tensor], layer: int) -> SourceState | None:
    """The compressed rows that a layer reads; none for a layer of the window alone."""
    if not config.ratios[layer]:
        return None
    source = config.kv_source(layer)
    return SourceState(
        latents_SC=state[f"latent.{source}"],
        keys_SD=state[f"key.{source}"],
        open_LTE=state.get(f"open.{source}"),
    )
