"""Heat maps over (q, s), as the paper's: red is better than the uniform buffer (0, 0), blue is worse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.files import write_atomically

Pair = tuple[float, float]  # (q, s)
UNIFORM: Pair = (0.0, 0.0)


def differences(values: Mapping[Pair, float]) -> dict[Pair, float]:
    """Each value less that of the uniform buffer, or less the mean if (0, 0) was not tried."""
    base = values[UNIFORM] if UNIFORM in values else fmean(values.values())
    return {pair: value - base for pair, value in values.items()}


def draw(panels: Mapping[str, Mapping[Pair, float]], stem: str | Path, chosen: Mapping[str, Pair] | None = None,
         unit: str = "points") -> list[Path]:
    """One panel per title, all on one colour scale, as `stem`.png and `stem`.svg; `chosen` pairs are printed bold."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('a figure needs matplotlib: pip install "mammoth-sbs[figures]"') from None
    shown = {title: differences(values) for title, values in panels.items()}
    limit = max(abs(value) for grid in shown.values() for value in grid.values()) or 1.0
    with rc_context({"svg.hashsalt": "mammoth-sbs", "svg.fonttype": "none", "font.size": 9}):  # same data, same file
        figure = Figure(figsize=(0.9 + 3.4 * len(shown), 3.4), layout="constrained")
        axes = figure.subplots(1, len(shown), squeeze=False)[0]
        for axis, (title, grid) in zip(axes, shown.items(), strict=True):
            image = _panel(axis, grid, limit, (chosen or {}).get(title))
            axis.set_title(title)
        to = "(0, 0)" if all(UNIFORM in grid for grid in shown.values()) else "the mean"
        figure.colorbar(image, ax=axes, shrink=0.8, label=f"difference to {to}, {unit}")
        files = [Path(f"{stem}.png"), Path(f"{stem}.svg")]
        for file in files:
            kind = file.suffix[1:]
            write_atomically(file, lambda f, kind=kind: figure.savefig(  # type: ignore[misc]
                f, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None), "figure")
    return files


def _panel(axis: Any, grid: Mapping[Pair, float], limit: float, chosen: Pair | None) -> Any:
    """One grid: q to the right, s upwards, pairs that were not tried left white."""
    from matplotlib.patches import Rectangle

    qs, ss = (sorted({pair[side] for pair in grid}) for side in (0, 1))
    cells = [[grid.get((q, s), float("nan")) for q in qs] for s in ss]
    image = axis.imshow(cells, origin="lower", cmap="RdBu_r", vmin=-limit, vmax=limit)
    if len(grid) <= 40:  # beyond, the numbers would not be legible
        for (q, s), value in grid.items():
            axis.text(qs.index(q), ss.index(s), f"{value:+.1f}", ha="center", va="center",
                      color="white" if abs(value) > 0.6 * limit else "black",
                      weight="bold" if (q, s) == chosen else "normal")
    for pair, style in ((UNIFORM, "-"), (chosen, ":")):
        if pair is not None and pair in grid:
            corner = qs.index(pair[0]) - 0.5, ss.index(pair[1]) - 0.5
            axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=2, linestyle=style,
                                     clip_on=False))
    axis.set_xticks(range(len(qs)), [f"{100 * q:g}%" for q in qs])
    axis.set_yticks(range(len(ss)), [f"{100 * s:g}%" for s in ss])
    axis.set_xlabel("quickest left out, q")
    axis.set_ylabel("slowest left out, s")
    return image
