"""What a figure leaves behind: PNG and SVG of it, the CSV of what is drawn, tables in Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mammoth_sbs.errors import UserError
from mammoth_sbs.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator

STYLE: Any = {"svg.hashsalt": "mammoth-sbs", "svg.fonttype": "none", "font.size": 9}  # same data, same file
Cells = frozenset[tuple[int, int]]  # (row, column)
Table = tuple[list[str], list[list[str]], Cells]  # head, rows, and which cells stand out


@contextmanager
def drawing(stem: str | Path, width: float, height: float, files: list[Path]) -> Iterator[Any]:
    """A matplotlib figure to draw on; afterwards it is `stem`.png and `stem`.svg, which are added to `files`."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError('a figure needs matplotlib: pip install "mammoth-sbs[figures]"') from None
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for kind, metadata in (("png", None), ("svg", {"Date": None})):
            file = Path(f"{stem}.{kind}")
            write_atomically(file, lambda f, kind=kind, metadata=metadata: figure.savefig(  # type: ignore[misc]
                f, format=kind, dpi=150, metadata=metadata), "figure")
            files.append(file)


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


def write_tables(stem: Path, tables: Sequence[tuple[str, Table]]) -> list[Path]:
    """Tables with their titles as `stem`.md and `stem`.tex."""
    return [write_text(Path(f"{stem}.md"), "\n".join(f"{title}\n\n{markdown(*table)}" for title, table in tables)),
            write_text(Path(f"{stem}.tex"), "\n".join(f"% {title}\n{latex(*table)}" for title, table in tables))]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], bold: Cells) -> str:
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1)]
    lines += [[f"**{cell}**" if (i, j) in bold else cell for j, cell in enumerate(row)] for i, row in enumerate(rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def latex(head: Sequence[str], rows: Sequence[Sequence[str]], bold: Cells) -> str:
    """The same for a paper; needs the package booktabs."""

    def escaped(cell: str) -> str:
        for plain, tex in (("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$"), ("−", "$-$"), ("–", "--")):
            cell = cell.replace(plain, tex)
        return cell

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\" + "\n"

    body = "".join(line([rf"\textbf{{{escaped(cell)}}}" if (i, j) in bold else escaped(cell)
                         for j, cell in enumerate(row)]) for i, row in enumerate(rows))
    return (f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}\n\\toprule\n{line([escaped(cell) for cell in head])}"
            f"\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n")
