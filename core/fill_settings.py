"""The fills of an engine, out of the settings: presets, and what is refused with which reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorfold.core.errors import StartError
from tensorfold.core.settings import Settings, switches

FILLS = ("fill_chunks", "fill_many", "fill_rounds", "fill_cut_in", "fill_drain", "fill_pack")

# What a preset sets; the fills that it does not name stay unset.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "plain": {},
    "smooth": {
        "fill_chunks": 1,
        "fill_many": True,
        "fill_rounds": 1,
        "fill_cut_in": 512,
        "fill_drain": 1024,
        "fill_pack": 1024,
    },
}


def fill_fields(
    settings: Settings, *, context: int, chunk_rows: int, passes: int, pack_rows: int
) -> dict[str, Any]:
    """The `fill_*` fields of an `Info`: the one helper through which a backend gives them.

    A preset's rows are cut to what the engine can do, so that a preset suits every engine. Raises
    `StartError` with the reason where a combination can do nothing or cannot work.
    """
    preset = {
        name: value
        for name, value in PRESETS[settings.fill].items()
        if not has_own_value(settings, name)
    }
    fills = {name: preset.get(name, getattr(settings, name)) for name in FILLS}
    step_rows = fills["fill_chunks"] * chunk_rows
    useful = {"fill_cut_in": step_rows, "fill_pack": pack_rows} if passes != 1 else {}
    for name in preset.keys() & {"fill_cut_in", "fill_pack"}:
        fills[name] = min(fills[name], useful.get(name, 0))
    refuse_what_cannot_work(fills, context, chunk_rows, passes, pack_rows)
    return fills


def has_own_value(settings: Settings, name: str) -> bool:
    """Whether a switch has a value of its own beside the preset, be it the default."""
    return name in settings.given or getattr(settings, name) != switches()[name][1]


def refuse_what_cannot_work(
    fills: Mapping[str, Any], context: int, chunk_rows: int, passes: int, pack_rows: int
) -> None:
    needing = {
        "TF_FILL_MANY": fills["fill_many"],
        "TF_FILL_ROUNDS": fills["fill_rounds"] != 1,
        "TF_FILL_CUT_IN": fills["fill_cut_in"] > 0,
        "TF_FILL_DRAIN": fills["fill_drain"] > 0,
    }
    for name, is_set in needing.items():
        if is_set and not fills["fill_chunks"]:
            raise StartError(f"{name} needs TF_FILL_CHUNKS: without it every prompt goes in whole")
    if passes == 1 and fills["fill_cut_in"] > 0:
        raise StartError("TF_FILL_CUT_IN cannot work: this engine takes one prompt at a time")
    if passes == 1 and fills["fill_pack"] > 0:
        raise StartError("TF_FILL_PACK cannot work: this engine takes one prompt at a time")
    if fills["fill_pack"] > pack_rows:
        raise StartError(
            f"TF_FILL_PACK is {fills['fill_pack']} rows, more than the {pack_rows} rows "
            "that this engine packs"
        )
    most = -(-context // chunk_rows)
    if fills["fill_chunks"] > most:
        raise StartError(
            f"TF_FILL_CHUNKS is {fills['fill_chunks']}, more than the {most} chunks of "
            f"{chunk_rows} rows in a context of {context}"
        )
