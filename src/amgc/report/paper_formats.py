"""The paper's tables as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby

from amgc.report.paper import departures
from amgc.report.paper_table import METRICS, Cell, PaperTable, Row
from amgc.report.table import WIDTH
from amgc.text import DASH, percent, printable

GAP = 2  # between two columns of the text
LATEX = {  # one pass over the text, so that what is inserted is not escaped again
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "…": r"\ldots{}",
    "[": "{[}",  # after the end of a row it would begin an option, and * a variant
    "*": "{*}",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}
PRINTED = {"SBnDBoLC": "SB$^{n}$DB$^{o}$LC"}  # names that the paper sets with superscripts


def as_text(table: PaperTable, width: int = WIDTH) -> str:
    """For the terminal: as many of the paper's columns side by side as fit into `width`, the others below them."""
    names = _column(["", "", "method"], [printable(row.name) for row in table.rows], str.ljust)
    blocks: list[list[list[str]]] = []  # blocks of columns of lines
    for place, column in enumerate(table.columns):
        metrics = [_padded([row.cells[2 * place + metric] for row in table.rows]) for metric in range(2)]
        heads = [[printable(column.name), printable(column.split), "LA"], ["", "", "AIA"]]
        pair = [_column(head, cells, str.rjust) for head, cells in zip(heads, metrics, strict=True)]
        if not blocks or sum(_width(lines[0]) + GAP for lines in [*blocks[-1], *pair]) - GAP > width:
            blocks.append([names])
        blocks[-1] += pair
    lines = [f"Table {table.number}: {table.title}; accuracies in percent", ""]
    for block in blocks:
        rows = list(zip(*block, strict=True))
        rows = rows[:3] + [cells for cells in rows[3:] if any(map(str.strip, cells[1:]))]
        joined = [(" " * GAP).join(cells) for cells in rows]
        lines += [*joined[:3], "─" * _width(joined[0]), *joined[3:], ""]
    for note in _notes(table, "**best**", "_second best_"):
        lines += textwrap.wrap(printable(note), width, break_on_hyphens=False)
    return "\n".join([*(line.rstrip() for line in lines), ""])


def as_markdown(table: PaperTable) -> str:
    """Aligned, so that it reads as plain text too."""
    header = ["method"]
    for column in table.columns:
        header += [f"{_markdown(column.label)}: LA", "AIA"]
    rows = [[_markdown(row.name), *[_markdown_cell(cell) for cell in row.cells]] for row in table.rows]
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *["-" * (width - 1) + ":" for width in widths[1:]]]
    lines = []
    for name, *cells in (header, rule, *rows):
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append(f"| {' | '.join([name.ljust(widths[0]), *aligned])} |")
    notes = [f"- {note}" for note in _notes(table, "**best**", "*second best*", _markdown)]
    title = f"**Table {table.number}**: {table.title}; accuracies in percent"
    return "\n".join([title, "", *lines, "", *notes, ""])


def as_latex(table: PaperTable) -> str:
    """A table environment for booktabs, laid out as in the paper; the paper's numbers stand below ours."""
    count = len(table.columns)
    spread = "*" if count > 2 else ""  # over both columns of a page
    spans = [(name, len(list(alike))) for name, alike in groupby(column.name for column in table.columns)]
    lines = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{table{spread}}}[t]",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\caption{{Table {table.number} of the paper with our runs: {_latex(table.title)}; accuracies in percent.}}",
        rf"\begin{{tabular}}{{l{'rr' * count}}}",
        r"\toprule",
        *_latex_heads([(name, 2 * span) for name, span in spans]),
        *_latex_heads([(column.split, 2) for column in table.columns]),
        " & ".join(["Method", *METRICS * count]) + r" \\",
    ]
    for in_paper, rows in groupby(table.rows, key=lambda row: row.in_paper):
        lines.append(r"\midrule" + ("" if in_paper else " % not in the paper"))
        for row in rows:
            lines += _latex_row(row)
    lines += [r"\bottomrule", r"\end{tabular}", "", r"\medskip", r"\begin{minipage}{\linewidth}\footnotesize"]
    lines += [f"{note}\\par" for note in _notes(table, r"\textbf{best}", r"\underline{second best}", _latex)]
    return "\n".join([*lines, r"\end{minipage}", rf"\end{{table{spread}}}", ""])


def as_csv(table: PaperTable) -> str:
    """A row per method, data set and T: percentages, empty where there is none, and departures from the paper's setting."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    numbers = [f"{metric}{part}" for metric in METRICS for part in ("", "_std", "_paper", "_difference")]
    writer.writerow(["method", "data", "tasks", "classes", "sizes", "n", *numbers, "departures"])
    for place, column in enumerate(table.columns):
        for row in table.rows:
            group, pair = row.groups[place], row.cells[2 * place : 2 * place + 2]
            if group is None and pair[0].paper is None:
                continue
            figures = [_plain(value) for cell in pair for value in _numbers(cell)]
            unlike = "; ".join(departures(group.runs[0])) if group is not None and column.in_paper else ""
            where = [column.data, column.tasks, sum(column.sizes), " ".join(map(str, column.sizes))]
            writer.writerow([row.key, *where, len(group.finished) if group else 0, *figures, unlike])
    return file.getvalue()


FORMATS: dict[str, Callable[[PaperTable], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def _notes(table: PaperTable, best: str, second: str, escape: Callable[[str], str] = str) -> list[str]:
    """What stands below; a legend for the marks if there are any."""
    ranked = any(cell.rank for row in table.rows for cell in row.cells)
    legend = [f"Marked: {best} and {second} of ours in a column, by the number as it is shown; equals share a mark."]
    return legend * ranked + [escape(note) for note in table.notes]


def _signed(value: float) -> str:
    """
    >>> _signed(1.26), _signed(-23.1), _signed(0.0)
    ('+1.3', '−23.1', '0.0')
    """
    return f"{value:+.1f}".replace("-", "−") if value else "0.0"


def _deviation(cell: Cell) -> str:
    return f" ± {percent(cell.ours.std)}" if cell.ours is not None and cell.ours.std is not None else ""


def _width(text: str) -> int:
    """Places that it takes on a terminal: some letters take two."""
    from rich.cells import cell_len

    return cell_len(text)


def _column(head: Sequence[str], cells: Sequence[str], justify: Callable[[str, int], str]) -> list[str]:
    """Lines of one width."""
    lines = [*head, *cells]
    width = max(map(_width, lines))
    return [justify(line, width - _width(line) + len(line)) for line in lines]


def _padded(cells: Sequence[Cell]) -> list[str]:
    """
    >>> from amgc.report.groups import Spread
    >>> _padded([Cell(Spread(0.277, 0.013, 3), 36.2, 1), Cell(Spread(0.098, None, 1), 9.7, 0), Cell(None, 4.0)])
    ['**27.7** ± 1.3 (36.2, −8.5)', '   9.8          (9.7, +0.1)', '     –                (4.0)']
    """
    parts = []
    for cell in cells:
        mark = ("", "**", "_")[cell.rank]
        value = percent(cell.ours.mean) if cell.ours is not None else DASH if cell.paper is not None else ""
        parts.append((mark, value, mark, _deviation(cell), _beside(cell)))
    opened, values, closed, deviations, beside = (max(map(len, column)) for column in zip(*parts, strict=True))
    return [
        f"{mark:>{opened}}{value:>{values}}{mark:<{closed}}{deviation:<{deviations}}"
        + (f" {paper:>{beside}}" if beside else "")
        for mark, value, _, deviation, paper in parts
    ]


def _beside(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    return f"({cell.paper:.1f})" if cell.difference is None else f"({cell.paper:.1f}, {_signed(cell.difference)})"


def _markdown_cell(cell: Cell) -> str:
    if cell.ours is None and cell.paper is None:
        return ""
    mark = ("", "**", "*")[cell.rank]
    value = percent(cell.ours.mean) if cell.ours is not None else DASH
    return f"{mark}{value}{mark}{_deviation(cell)} {_beside(cell)}".rstrip()


def _markdown(text: str) -> str:
    """
    >>> _markdown("a_b|c*d")
    'a\\\\_b\\\\|c\\\\*d'
    """
    return re.sub(r"([\\`*_|<>\[\]~])", r"\\\1", printable(text))


def _latex(text: str) -> str:
    r"""
    >>> print(_latex("50 % of a_b & c#d {\\x} ± 2"))
    50 \% of a\_b \& c\#d \{\textbackslash{}x\} $\pm$ 2
    """
    return "".join(LATEX.get(letter, letter) for letter in printable(text))


def _latex_heads(spans: Sequence[tuple[str, int]]) -> list[str]:
    """A line of names over several columns each, and the rules below it."""
    cells, rules, start = [""], [], 2
    for name, span in spans:
        cells.append(rf"\multicolumn{{{span}}}{{c}}{{{_latex(name)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + span - 1}}}")
        start += span
    return [" & ".join(cells) + r" \\", "".join(rules)]


def _latex_row(row: Row) -> list[str]:
    lines = [[PRINTED.get(row.name) if row.in_paper and row.name in PRINTED else _latex(row.name)]]
    for cell in row.cells:
        value = percent(cell.ours.mean) if cell.ours is not None else DASH if cell.paper is not None else ""
        marked = (_latex(value), rf"\textbf{{{value}}}", rf"\underline{{{value}}}")[cell.rank]
        lines[0].append(marked + _latex(_deviation(cell)))
    if any(cell.paper is not None for cell in row.cells):
        paper = [_latex(_latex_beside(cell)) for cell in row.cells]
        lines.append([r"\quad paper", *[rf"{{\scriptsize {text}}}" if text else "" for text in paper]])
    return [" & ".join(map(str, line)) + r" \\" for line in lines]


def _latex_beside(cell: Cell) -> str:
    if cell.paper is None:
        return ""
    return f"{cell.paper:.1f}" + ("" if cell.difference is None else f" ({_signed(cell.difference)})")


def _numbers(cell: Cell) -> tuple[float | None, ...]:
    """Ours, its deviation, the paper's and the difference in percent, not rounded."""
    mean = None if cell.ours is None else 100 * cell.ours.mean
    std = None if cell.ours is None or cell.ours.std is None else 100 * cell.ours.std
    return mean, std, cell.paper, None if mean is None or cell.paper is None else mean - cell.paper


def _plain(value: float | None) -> str:
    return "" if value is None else f"{round(value, 4) + 0.0:g}"
