"""The lane timeline as a PNG: one row a lane, passes and rounds over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorfold.core.errors import StartError
from tensorfold.core.lane_host.fills import CUT_IN, DRAINED, PACKED, PIECE, WHOLE
from tensorfold.tools.sim.report import Panel
from tensorfold.tools.sim.timeline import ROUND, Bar, bars

COLOURS = {
    WHOLE: "#4477aa",
    PIECE: "#cc6677",
    DRAINED: "#228833",
    PACKED: "#aa3377",
    CUT_IN: "#ee7733",
    ROUND: "#bbbbbb",
}
NAMES = {DRAINED: "whole, same turn", CUT_IN: "cut in"}
MOST_BARS = 20_000  # a picture of more shows nothing


def save(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels one below the other; like lengths share a time axis. Raises `StartError`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise StartError("--plot needs matplotlib: install tensorfold[dev]") from None
    drawn = [(panel.title, bars(panel.turns)[:MOST_BARS]) for panel in panels if panel.turns]
    if not drawn:
        raise StartError("there is nothing to draw: no turn ran a forward")
    lengths = [max(b.end for b in shown) - min(b.start for b in shown) for _, shown in drawn]
    alike = max(lengths) < 2 * min(lengths)
    heights = [1 + max(bar.lane for bar in shown) for _, shown in drawn]
    figure = Figure(
        figsize=(10, sum(0.5 + 0.17 * height for height in heights) + 0.5), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(drawn), 1, squeeze=False, sharex=alike, height_ratios=heights)
    for (title, shown), (axis,) in zip(drawn, axes, strict=True):
        draw(axis, title, shown)
    axes[-1][0].set_xlabel("seconds")
    kinds = {bar.kind for _, shown in drawn for bar in shown}
    legend(figure, [kind for kind in COLOURS if kind in kinds])
    try:
        figure.savefig(path, dpi=90, metadata={"Software": None})
    except OSError as error:
        raise StartError(f"the picture {path} cannot be written: {error.strerror}") from None


def draw(axis: Any, title: str, shown: Sequence[Bar]) -> None:
    began = min(bar.start for bar in shown)
    by_place: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for bar in shown:
        span = (bar.start - began, bar.end - bar.start)
        by_place.setdefault((bar.lane, bar.kind), []).append(span)
    for (lane, kind), spans in by_place.items():
        axis.broken_barh(
            spans, (lane - 0.4, 0.8), facecolor=COLOURS[kind], edgecolor="white", linewidth=0.4
        )
    axis.set_title(title, loc="left", fontsize=9)
    axis.set_ylabel("lane", fontsize=8)
    axis.set_yticks(range(1 + max(bar.lane for bar in shown)))
    axis.tick_params(labelsize=7)
    axis.invert_yaxis()
    axis.margins(x=0)


def legend(figure: Any, kinds: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=COLOURS[kind], label=NAMES.get(kind, kind)) for kind in kinds]
    figure.legend(handles=patches, loc="outside upper right", ncols=len(patches), fontsize=8)
