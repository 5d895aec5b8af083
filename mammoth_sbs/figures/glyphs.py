"""Small drawings for a table's cells, as SVG: they stretch with the cell, and their lines do not."""

from __future__ import annotations

import html
from collections.abc import Sequence

from mammoth_sbs.figures.statistics import Difference, Mean


class Scale:
    """Where a value lies between two others, from 0 to 100; zero is always in between."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low, self.high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)

    def __call__(self, value: float) -> float:
        return round(100 * (value - self.low) / ((self.high - self.low) or 1.0), 2)


def svg(kind: str, content: str, height: int = 10, label: str = "") -> str:
    """`label` is what it shows in words; without it the cell's text says the same."""
    said = f'role="img" aria-label="{html.escape(label)}"' if label else 'aria-hidden="true"'
    return f'<svg class="{kind}" viewBox="0 0 100 {height}" preserveAspectRatio="none" {said}>{content}</svg>'


def bar(value: Mean, scale: Scale, colour: str) -> str:
    """A mean as a bar from zero, its standard error as a whisker."""
    start, end = sorted((scale(0), scale(value.mean)))
    whisker = "" if value.error is None else \
        f'<path d="M{scale(value.mean - value.error)} 5H{scale(value.mean + value.error)}"/>'
    return svg("bar", f'<rect x="{start}" y="1" width="{round(end - start, 2)}" height="8" fill="{colour}"/>{whisker}')


def point(change: Difference, scale: Scale, colour: str) -> str:
    """A difference as a point on its 95% interval, beside the line of no difference."""
    span = "" if change.low is None or change.high is None else \
        f'<path stroke="{colour}" d="M{scale(change.low)} 5H{scale(change.high)}"/>'
    return svg("point", f'<path class="zero" d="M{scale(0)} 0V10"/>{span}'
                        f'<path class="dot" stroke="{colour}" d="M{scale(change.mean)} 5h0"/>')


def tasks(best: Sequence[float], last: Sequence[float], colour: str, title: str) -> str:
    """A column per task: filled up to the accuracy at the end, its outline up to the best it ever was.

    What is not filled was forgotten.
    """
    width = 100 / len(last)
    drawn, said = "", []
    for i, (top, end) in enumerate(zip(best, last, strict=True)):
        for high, style in ((top, 'class="best"'), (end, f'fill="{colour}"')):
            drawn += (f'<rect {style} x="{round((i + 0.1) * width, 2)}" y="{round(100 - high, 1)}" '
                      f'width="{round(0.8 * width, 2)}" height="{round(high, 1)}"/>')
        said.append(f"task {i + 1} {end:.1f} of {top:.1f}")
    return svg("tasks", drawn, 100, f"{title} at the end, of the best it was, in percent: {', '.join(said)}")
