"""Fill settings by name, as `Info` fields; refused where a server would refuse them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorfold.core.fill_settings import fill_fields
from tensorfold.core.settings import read

UNSET: Mapping[str, Any] = {}
MANY: Mapping[str, Any] = {"fill_chunks": 1, "fill_many": True}
DRAIN: Mapping[str, Any] = {**MANY, "fill_drain": 4096}
PACK: Mapping[str, Any] = {**DRAIN, "fill_pack": 4096}
CUT_IN: Mapping[str, Any] = {"fill_chunks": 1, "fill_cut_in": 512}
SMOOTH: Mapping[str, Any] = {"fill": "smooth"}
BURST_ARMS = {"unset": UNSET, "many": MANY, "drain": DRAIN, "pack": PACK}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The engine's limits, in streams, tokens and rows; as in `Info` and `FakeOptions`."""

    lanes: int = 8
    context: int = 1 << 20
    chunk_rows: int = 512
    pack_rows: int = 4096
    passes: int = 0
    room_tokens: int = 0


def fills(arm: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """An arm's `fill_*` fields. Raises `StartError` as a server would."""
    return fill_fields(
        read(arm, {}),
        context=limits.context,
        chunk_rows=limits.chunk_rows,
        passes=limits.passes,
        pack_rows=limits.pack_rows,
    )
