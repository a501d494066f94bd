"""Rounds and prompts beside their floors as a PNG."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tensorfold.core.errors import StartError
from tensorfold.tools.decode.figures import Figures

OURS, FLOOR, PEER = "#4477aa", "#bbbbbb", "#cc6677"


def save(figures: Figures, options: argparse.Namespace, path: Path) -> None:
    """Raises `StartError` where nothing was measured or matplotlib is not there."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise StartError("--plot needs matplotlib: install tensorfold[dev]") from None
    if not figures.rounds and not figures.prompts:
        raise StartError("there is nothing to draw: nothing was measured")
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    rounds = [one for one in figures.rounds if one.context == options.context]
    draw(
        left,
        [str(one.streams) for one in rounds],
        {
            "floor": [figures.floor_of(one) * 1e3 for one in rounds],
            "ours": [one.device * 1e3 for one in rounds],
        },
        f"a round at context {options.context}, ms, by streams",
    )
    prompts = figures.prompts
    series = {
        "floor": [one.rows * figures.matrix_rate / one.operations / 1e3 for one in prompts],
        "ours": [one.rows / one.seconds / 1e3 for one in prompts],
    }
    if any(figures.peer_rate(one.rows) for one in prompts):
        series["peer"] = [(figures.peer_rate(one.rows) or 0) / 1e3 for one in prompts]
    draw(right, [str(one.rows) for one in prompts], series, "thousand rows a second, by rows")
    unchecked = ", UNCHECKED" if options.unchecked else ""
    smaller = f", {figures.smaller}" if figures.smaller else ""
    figure.suptitle(
        f"{options.family}, {options.widths} widths, {options.layers} layers{smaller}, "
        f"{figures.info.get('device', '')} {figures.info.get('dtype', '')}{unchecked}"
    )
    figure.savefig(path, dpi=120)


def draw(axis: Any, places: list[str], series: dict[str, list[float]], title: str) -> None:
    colours = {"floor": FLOOR, "ours": OURS, "peer": PEER}
    wide = 0.8 / max(1, len(series))
    for number, (name, values) in enumerate(series.items()):
        at = [place + number * wide for place in range(len(places))]
        axis.bar(at, values, wide, label=name, color=colours[name])
    axis.set_xticks([place + 0.4 - wide / 2 for place in range(len(places))], places)
    axis.set_title(title)
    axis.legend()
