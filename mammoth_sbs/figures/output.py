"""What a figure leaves behind: PNG and SVG of it, the CSV of what is drawn, tables in Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.statistics import POOLED, Difference, probability
from mammoth_sbs.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

STYLE: Any = {"svg.hashsalt": "mammoth-sbs", "svg.fonttype": "none", "font.size": 9}  # same data, same file
Cells = frozenset[tuple[int, int]]  # (row, column)
Table = tuple[list[str], list[list[str]], Cells]  # head, rows, and which cells stand out


@contextmanager
def drawing(stem: str | Path, width: float, height: float, files: list[Path], alt: str,
            layout: Any = "constrained") -> Iterator[Any]:
    """A matplotlib figure to draw on; afterwards it is `stem`.png and `stem`.svg, which are added to `files`.

    Both hold `alt`, what they show in words.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('a figure needs matplotlib: pip install "mammoth-sbs[figures]"') from None
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout=layout)
        yield figure
        figure.draw_without_rendering()  # places what depends on how large ticks and labels have come out
        for kind, metadata in (("png", {"Description": alt}), ("svg", {"Date": None, "Description": alt})):
            file = Path(f"{stem}.{kind}")
            write_atomically(file, lambda f, kind=kind, metadata=metadata: figure.savefig(  # type: ignore[misc]
                f, format=kind, dpi=150, metadata=metadata), "figure")
            files.append(file)


def legend_above(figure: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend in as many columns as there is room for; a figure too narrow for one column is made wider."""
    for columns in range(len(labels), 0, -1):
        legend = figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)
        figure.draw_without_rendering()
        needed = legend.get_window_extent().width / figure.dpi
        if needed <= figure.get_figwidth():
            return
        if columns > 1:
            legend.remove()
    figure.set_figwidth(needed + 0.1)


def note_below(figure: Any, *lines: str) -> None:
    """What marks and whiskers are, in the figure itself; lines are broken where it ends."""
    room = int(figure.get_figwidth() * 16)  # characters of this size
    figure.supxlabel("\n".join(part for line in lines for part in wrap(line, room)), fontsize=7.5, color="#444444")


def rows_of(count: int, most: int) -> tuple[int, int]:
    """Rows and columns for so many panels, at most `most` beside each other, with rows as equally long as can be."""
    rows = -(-count // most)
    return rows, -(-count // rows)


def panels(figure: Any, count: int, columns: int, **shared: Any) -> Any:
    """Axes in lines of `columns`; what is left over in the last line stays empty."""
    axes = figure.subplots(-(-count // columns), columns, squeeze=False, **shared).ravel()
    for axis in axes[count:]:
        axis.set_visible(False)
    return axes[:count]


def write_text(path: Path, content: str, what: str = "table") -> Path:
    write_atomically(path, lambda f: f.write(content.encode()), what)
    return path


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """One line per row; numbers as they are."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, out.getvalue())


def columns(name: str, change: Difference) -> dict[str, Any]:
    """All that is known of a difference, for a CSV."""
    return {name: change.mean, f"{name}_standard_error": change.error, f"{name}_low": change.low,
            f"{name}_high": change.high, f"{name}_p": change.p, f"{name}_p_holm": change.holm,
            f"{name}_seeds_up": change.up}


def difference_table(changes: Mapping[str, Difference], what: str, higher: bool) -> Table:
    """Difference, interval and p-values of each row; `higher` is better, or lower."""
    head = [what, "difference", "95% interval", "seeds better", "p", "p, Holm"]
    return head, [[name, change.text(sign=True), change.span(), change.better(higher), probability(change.p),
                   "" if name == POOLED else probability(change.holm)] for name, change in changes.items()], frozenset()


def write_tables(stem: Path, tables: Sequence[tuple[str, Table]]) -> list[Path]:
    """Tables with their titles as `stem`.md and `stem`.tex."""
    plain = str.maketrans({"−": "-", "±": "+-"})  # for LaTeX's comments
    return [write_text(Path(f"{stem}.md"), "\n".join(f"{title}\n\n{markdown(*table)}" for title, table in tables)),
            write_text(Path(f"{stem}.tex"), "\n".join(f"% {title.translate(plain)}\n{latex(*table)}"
                                                      for title, table in tables))]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], bold: Cells) -> str:
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1)]
    lines += [[f"**{cell}**" if (i, j) in bold else cell for j, cell in enumerate(row)] for i, row in enumerate(rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def latex(head: Sequence[str], rows: Sequence[Sequence[str]], bold: Cells) -> str:
    """The same for a paper; needs the package booktabs."""

    def escaped(cell: str) -> str:
        for plain, tex in (("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$"), ("−", "$-$"), ("–", "--")):
            cell = cell.replace(plain, tex)
        return re.sub(r"(?<![\w-])-(?=\d)", "$-$", cell)

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\" + "\n"

    body = "".join(line([rf"\textbf{{{escaped(cell)}}}" if (i, j) in bold else escaped(cell)
                         for j, cell in enumerate(row)]) for i, row in enumerate(rows))
    return (f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}\n\\toprule\n{line([escaped(cell) for cell in head])}"
            f"\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n")
