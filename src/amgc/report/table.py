"""Describe a table once and write it for the terminal, as text, Markdown, LaTeX or CSV. `html.py` writes it as HTML.

rich is imported when a table is shown.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from amgc.text import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table as RichTable

WIDTH = 100  # columns of text, unless a terminal is wider
GAP = 2  # columns between two columns of a table
LATEX = {
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
    "[": "{[}",  # after \\ a bracket would start an option, and a star a variant
    "*": "{*}",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}


@dataclass(frozen=True)
class Cell:
    """A value with its deviation and with another value for comparison, such as the paper's."""

    value: str
    deviation: str = ""
    beside: str = ""
    rank: int = 0  # 1 marks the best of a column, 2 the second best


@dataclass(frozen=True)
class Table:
    """A table: the first column holds names, the others hold numbers.

    header : name of each column; a tuple holds the names of the column groups first, then that of the column.
    definitions : meaning of column names. notes : sentences below the table.
    rules : indices of rows that a rule precedes (in LaTeX). beside : what `Cell.beside` is.
    """

    header: Sequence[str | tuple[str, ...]]
    rows: Sequence[Sequence[str | Cell]]
    title: str = ""
    definitions: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    rules: Sequence[int] = ()
    beside: str = ""

    @property
    def levels(self) -> list[tuple[str, ...]]:
        """The header of each column as a tuple; the first column's is filled up with empty names."""
        tuples = [(name,) if isinstance(name, str) else name for name in self.header]
        depth = max(map(len, tuples))
        return [("",) * (depth - len(names)) + names for names in tuples]

    @property
    def cells(self) -> list[list[Cell]]:
        return [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]

    def legend(self, best: str, second: str) -> list[str]:
        """Explain the marks of the best values, if there are any."""
        ranked = any(cell.rank for row in self.cells for cell in row)
        return [f"Marked: {best} and {second} of ours in a column, by the rounded numbers; ties share a mark."] * ranked

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        if self.title:
            yield Text(f"{printable(self.title)}\n")
        columns = [_aligned([row[place] for row in self.cells]) for place in range(len(self.header))]
        for block in self._blocks(columns, options.max_width):
            chosen = [columns[place] for place in block]
            rows = [row for row in zip(*chosen, strict=True) if any(map(str.strip, row[1:]))]
            yield grid(["\n".join(name) for name in self._heads(block)], rows)
            yield ""
        if self.definitions:
            yield definition_list(self.definitions)
        for note in [*self.legend("**best**", "_second best_"), *self.notes]:
            yield Text(printable(note), style="italic")

    def _heads(self, columns: Sequence[int]) -> list[tuple[str, ...]]:
        """Return the headers of these columns. The name of a group is above its first column only."""
        heads: list[tuple[str, ...]] = []
        for before, place in zip([None, *columns], columns, strict=False):
            *groups, name = self.levels[place]
            same = before is not None and self.levels[before][:-1] == tuple(groups)
            heads.append((*([""] * len(groups) if same else groups), name))
        return heads

    def _blocks(self, columns: Sequence[Sequence[str]], width: int) -> list[list[int]]:
        """Split the columns into blocks that fit into `width` and keep groups of columns together."""
        from rich.cells import cell_len

        widths = [
            GAP + max(map(cell_len, [*names, *texts]))
            for names, texts in zip(self._heads(range(len(columns))), columns, strict=True)
        ]
        if len(self.levels[0]) == 1:
            return [list(range(len(columns)))]
        blocks: list[list[int]] = []
        for _, alike in groupby(range(1, len(columns)), key=lambda place: self.levels[place][:-1]):
            group = list(alike)
            if not blocks or sum(widths[place] for place in [*blocks[-1], *group]) - GAP > width:
                blocks.append([0])
            blocks[-1] += group
        return blocks


def as_text(table: RenderableType, width: int = WIDTH) -> str:
    """Write a table as plain text; groups of columns that do not fit into `width` follow below."""
    from rich.console import Console

    console = Console(width=width, file=io.StringIO(), color_system=None, force_jupyter=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def as_markdown(table: Table) -> str:
    """Write a table as Markdown that is aligned, so that it is readable as plain text as well."""

    def cell_text(cell: Cell) -> str:
        mark = ("", "**", "*")[cell.rank]
        return f"{mark}{_markdown(cell.value)}{mark}{cell.deviation} {cell.beside}".strip()

    heads = []
    for *groups, name in table._heads(range(len(table.header))):
        group = ", ".join(filter(None, groups))
        heads.append(f"{group}: {name}" if group else name)
    rows = [list(map(_markdown, heads)), *[[cell_text(cell) for cell in row] for row in table.cells]]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * widths[0], *["-" * (width - 1) + ":" for width in widths[1:]]])
    lines = []
    for name, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append(f"| {' | '.join([name.ljust(widths[0]), *aligned])} |")
    title = [f"**{_markdown(table.title)}**", ""] if table.title else []
    below = [_markdown(f"{name}: {meaning}") for name, meaning in table.definitions]
    below += [*table.legend("**best**", "*second best*"), *map(_markdown, table.notes)]
    return "\n".join([*title, *lines, "", *[f"- {text}" for text in below], ""])


def as_latex(table: Table) -> str:
    """Write a table as a LaTeX table environment for booktabs; values for comparison are on a separate line."""
    count = len(table.header) - 1
    star = "*" if count > 4 else ""  # a wide table spans both columns of a page
    lines = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{table{star}}}[t]",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{_latex(table.title)}.}}",
        rf"\begin{{tabular}}{{l{'r' * count}}}",
        r"\toprule",
    ]
    for level in range(1, len(table.levels[0])):
        spans = [(key[-1], len(list(alike))) for key, alike in groupby(names[:level] for names in table.levels[1:])]
        lines += _latex_spans(spans)
    lines += [" & ".join(_latex(names[-1]) for names in table.levels) + r" \\", r"\midrule"]
    for place, row in enumerate(table.cells):
        lines += [r"\midrule"] * (place in table.rules)
        lines.append(" & ".join(_latex_cell(cell) for cell in row) + r" \\")
        if any(cell.beside for cell in row):
            beside = [rf"{{\scriptsize {_latex(cell.beside)}}}" if cell.beside else "" for cell in row[1:]]
            lines.append(" & ".join([rf"\quad {_latex(table.beside)}", *beside]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", "", r"\medskip", r"\begin{minipage}{\linewidth}\footnotesize"]
    notes = [_latex(f"{name}: {meaning}.") for name, meaning in table.definitions]
    notes += [*table.legend(r"\textbf{best}", r"\underline{second best}"), *map(_latex, table.notes)]
    return "\n".join([*lines, *[f"{note}\\par" for note in notes], r"\end{minipage}", rf"\end{{table{star}}}", ""])


def as_csv(table: Table) -> str:
    """Write the column names and the values of a table as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([names[-1] for names in table.levels])
    writer.writerows([cell.value for cell in row] for row in table.cells)
    return file.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {"text": as_text, "markdown": as_markdown, "latex": as_latex, "csv": as_csv}


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> RichTable:
    """Return a rich table in the style of all tables; the columns `left` hold names, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for place, name in enumerate(header):
        named = place in left
        head = Text("\n".join(map(printable, name.split("\n"))))
        table.add_column(head, justify="left" if named else "right", no_wrap=not named, overflow="fold")
    for row in rows:
        table.add_row(*[Text(printable(cell)) for cell in row])
    return table


def definition_list(definitions: Sequence[tuple[str, str]]) -> RichTable:
    """Return a line for each name and its meaning."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable.grid(padding=(0, 2, 0, 0))
    for name, meaning in definitions:
        table.add_row(Text(name, style="bold"), Text(meaning))
    return table


def _aligned(cells: Sequence[Cell]) -> list[str]:
    """Write the cells of a column so that values, deviations and values for comparison are below each other.

    >>> _aligned([Cell("27.7", " ± 1.3", "(36.2, −8.5)", 1), Cell("9.8", "", "(9.7, +0.1)"), Cell("–", "", "(4.0)")])
    ['**27.7** ± 1.3 (36.2, −8.5)', '   9.8          (9.7, +0.1)', '     –                (4.0)']
    """
    if not any(cell.deviation or cell.beside or cell.rank for cell in cells):
        return [printable(cell.value) for cell in cells]
    parts = [(("", "**", "_")[cell.rank], cell.value, cell.deviation, cell.beside) for cell in cells]
    marks, values, deviations, beside = (max(map(len, column)) for column in zip(*parts, strict=True))
    return [
        f"{mark:>{marks}}{value:>{values}}{mark:<{marks}}{deviation:<{deviations}}" + (f" {other:>{beside}}" if beside else "")
        for mark, value, deviation, other in parts
    ]


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


def _latex_cell(cell: Cell) -> str:
    value = _latex(cell.value)
    return (value, rf"\textbf{{{value}}}", rf"\underline{{{value}}}")[cell.rank] + _latex(cell.deviation)


def _latex_spans(spans: Sequence[tuple[str, int]]) -> list[str]:
    """Return a header line whose names span several columns each, and the rules below it."""
    cells, rules, start = [""], [], 2
    for name, span in spans:
        cells.append(rf"\multicolumn{{{span}}}{{c}}{{{_latex(name)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + span - 1}}}")
        start += span
    return [" & ".join(cells) + r" \\", "".join(rules)]
