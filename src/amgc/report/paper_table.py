"""The paper's tables with the user's runs in them: numbers, ranks and notes, as a `Table` that can be written in any format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amgc.report.groups import MethodRuns, Spread, grouped, short_name, sum_of_sizes
from amgc.report.paper import NAMES, TABLES, departures, figures, sizes_of
from amgc.report.table import FORMATS, WIDTH, Cell, Table, as_text
from amgc.runs import DEFINITIONS, RunError, RunRecord
from amgc.text import DASH, percent, plural

METRICS = ("LA", "AIA")
BOUND = "joint"  # trains on all old data again, so it is not ranked with the others
MAX_SETTINGS = 6  # differing settings that are listed
SUPERSCRIPTS = ("SBnDBoLC", "SB$^{n}$DB$^{o}$LC")  # as the paper typesets the name


@dataclass(frozen=True)
class Column:
    """A data set and its split into tasks. It has two columns of numbers, LA and AIA."""

    data: str
    sizes: tuple[int, ...]

    @property
    def tasks(self) -> int:
        return len(self.sizes)

    @property
    def in_paper(self) -> bool:
        return self.data in NAMES and self.tasks in TABLES[1].tasks and self.sizes == sizes_of(self.data, self.tasks)

    @property
    def name(self) -> str:
        return NAMES.get(self.data) or short_name(self.data)

    @property
    def split(self) -> str:
        """
        >>> Column("cifar100", (10,) * 10).split, Column("digits", (2,) * 5).split, Column("digits", (4, 2, 2, 2)).split
        ('T = 10', 'T = 5, 10 classes', 'T = 4, 10 classes (4 + 3 × 2)')
        """
        if self.in_paper:
            return f"T = {self.tasks}"
        unequal = f" ({sum_of_sizes(self.sizes)})" if len(set(self.sizes)) > 1 else ""
        return f"T = {self.tasks}, {sum(self.sizes)} classes{unequal}"

    @property
    def label(self) -> str:
        return f"{self.name}, {self.split}"


@dataclass
class Number:
    """One of our numbers (a fraction) over seeds and the paper's (in percent); rank 1 is the best of ours, 2 the second."""

    ours: Spread | None = None
    paper: float | None = None
    rank: int = 0

    @property
    def shown(self) -> float | None:
        """Our number in percent, rounded as it is shown."""
        return None if self.ours is None else float(percent(self.ours.mean))

    @property
    def difference(self) -> float | None:
        """Our number minus the paper's in percentage points, computed from the rounded numbers."""
        return None if self.shown is None or self.paper is None else round(self.shown - self.paper, 1) + 0.0

    @property
    def cell(self) -> Cell:
        """The number as text, with the paper's number and the difference beside it."""
        if self.ours is None and self.paper is None:
            return Cell("")
        deviation = f" ± {percent(self.ours.std)}" if self.ours is not None and self.ours.std is not None else ""
        beside = ""
        if self.paper is not None:
            difference = "" if self.difference is None else f", {_signed(self.difference)}"
            beside = f"({self.paper:.1f}{difference})"
        return Cell(DASH if self.ours is None else percent(self.ours.mean), deviation, beside, self.rank)

    @property
    def values(self) -> list[str]:
        """Mean, deviation, the paper's number and the difference in percent, not rounded, for CSV."""
        mean = None if self.ours is None else 100 * self.ours.mean
        std = None if self.ours is None or self.ours.std is None else 100 * self.ours.std
        difference = None if mean is None or self.paper is None else mean - self.paper
        return ["" if value is None else f"{round(value, 4) + 0.0:g}" for value in (mean, std, self.paper, difference)]


@dataclass(frozen=True)
class Row:
    key: str  # the method's name, or the name that the user gave
    name: str  # as the paper writes it
    in_paper: bool
    cells: tuple[Number, ...]  # LA and AIA of each column in turn
    groups: tuple[MethodRuns | None, ...]  # one per column

    @property
    def is_bound(self) -> bool:
        return any(group is not None and group.runs[0].method == BOUND for group in self.groups)


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's tables with the user's runs in it."""

    number: int
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()  # names of runs that have no row in this table

    def format(self, name: str, width: int = WIDTH) -> str:
        """Write the table as "text" (at most `width` columns wide), "markdown", "latex" or "csv"."""
        if name == "text":
            return as_text(self.table(), width)
        if name == "csv":
            return FORMATS[name](self.records())
        written = FORMATS[name](self.table())
        return written.replace(*SUPERSCRIPTS) if name == "latex" else written

    def table(self) -> Table:
        """Return the table in the paper's layout."""
        return Table(
            header=["method", *[(column.name, column.split, metric) for column in self.columns for metric in METRICS]],
            rows=[[row.name, *[number.cell for number in row.cells]] for row in self.rows],
            title=f"Table {self.number} of the paper with our runs: {self.title}; accuracies in percent",
            definitions=[(name, DEFINITIONS[name]) for name in METRICS],
            notes=self.notes,
            rules=[i for i, row in enumerate(self.rows) if i and row.in_paper != self.rows[i - 1].in_paper],
            beside="paper",
        )

    def records(self) -> Table:
        """Return a row per method, data set and number of tasks, with plain numbers and the differing settings."""
        numbers = [f"{metric}{part}" for metric in METRICS for part in ("", "_std", "_paper", "_difference")]
        rows = []
        for place, column in enumerate(self.columns):
            for row in self.rows:
                group, pair = row.groups[place], row.cells[2 * place : 2 * place + 2]
                if group is None and pair[0].paper is None:
                    continue
                differing = "; ".join(departures(group.runs[0])) if group is not None and column.in_paper else ""
                where = [column.data, str(column.tasks), str(sum(column.sizes)), " ".join(map(str, column.sizes))]
                values = [value for number in pair for value in number.values]
                rows.append([row.key, *where, str(len(group.finished) if group else 0), *values, differing])
        return Table(["method", "data", "tasks", "classes", "sizes", "n", *numbers, "departures"], rows)

    @property
    def notes(self) -> list[str]:
        """What a reader has to know to interpret the numbers."""
        notes = []
        if any(number.paper is not None for row in self.rows for number in row.cells):
            notes.append("In brackets: the paper's number, and ours minus the paper's in percentage points.")
        notes += [_seeds(self), *_unfinished(self), *_departures(self), *_renamed(self), *_conflicting_amgc(self)]
        if bounds := [row.name for row in self.rows if row.is_bound]:
            notes.append(f"Trained on all data seen so far and therefore not ranked: {', '.join(bounds)}.")
        if self.left_out:
            notes.append(f"Not part of this table and left out: {', '.join(self.left_out)}.")
        return notes


def paper_table(number: int, runs: Sequence[tuple[str, RunRecord]]) -> PaperTable:
    """Return the paper's table `number` with the runs of `named_runs`: the paper's rows first, then additional ones.

    Table 1 accepts every method; Tables 2 and 3 accept their own methods and runs that the user has named. The paper's columns
    of a data set are shown if at least one run uses it.
    """
    layout = TABLES[number]
    for name, run in runs:
        own = str(run.config["method"])  # the path, for a method from a file
        printed = layout.rows.get(name, name)
        if printed in layout.rows.values() and name != own:
            raise RunError(
                f"{str(run.path)!r} is a run of {own!r}; as {name!r} it would be shown beside the paper's "
                f"{printed}. Give it another name, such as mine={run.path}."
            )
    taken = [(name, run) for name, run in runs if number == 1 or name in layout.rows or name != run.method]
    left_out = tuple(dict.fromkeys(name for name, run in runs if (name, run) not in taken))
    if not taken:
        found = f"the runs are of {', '.join(left_out)} only" if left_out else "there are no runs"
        raise ValueError(f"table {number} has the rows {', '.join(layout.rows)}; {found}. Specify other runs.")
    groups = grouped(taken)
    on = {group.data for group in groups}
    columns = [Column(data, sizes_of(data, tasks)) for data in layout.data if data in on for tasks in layout.tasks]
    columns = list(dict.fromkeys([*columns, *[Column(group.data, group.sizes) for group in groups]]))
    names = dict.fromkeys([*layout.rows, *[group.name for group in groups]])
    rows = [_row(number, name, columns, groups) for name in names]
    _rank(rows)
    shown = [row for row in rows if any(row.groups) or any(cell.paper is not None for cell in row.cells)]
    return PaperTable(number, layout.title, tuple(columns), tuple(shown), left_out)


def _row(number: int, name: str, columns: Sequence[Column], groups: Sequence[MethodRuns]) -> Row:
    cells: list[Number] = []
    own: list[MethodRuns | None] = []
    for column in columns:
        found = [group for group in groups if group.name == name and Column(group.data, group.sizes) == column]
        paper = figures(number, name, column.data, column.tasks) if column.in_paper else {}
        group = found[0] if found else None
        own.append(group)
        cells.append(Number(group.last_accuracy if group else None, paper.get("LA")))
        cells.append(Number(group.average_incremental_accuracy if group else None, paper.get("AIA")))
    printed = TABLES[number].rows.get(name)
    return Row(name, printed or name, printed is not None, tuple(cells), tuple(own))


def _rank(rows: Sequence[Row]) -> None:
    """Rank the best and second best of our numbers in every column, as they are rounded; equal numbers share a rank."""
    for column in zip(*(row.cells for row in rows if not row.is_bound), strict=True):
        shown = [number.shown for number in column if number.shown is not None]
        best = sorted(set(shown), reverse=True)[:2]
        for number in column if len(shown) > 1 else ():  # a single number is not ranked
            number.rank = best.index(number.shown) + 1 if number.shown in best else 0


def _filled(table: PaperTable) -> list[tuple[Row, Column, MethodRuns]]:
    return [
        (row, column, group)
        for column_place, column in enumerate(table.columns)
        for row in table.rows
        if (group := row.groups[column_place]) is not None
    ]


def _seeds(table: PaperTable) -> str:
    """State how many seeds each of our numbers is computed from."""
    counts: dict[int, list[tuple[Row, Column]]] = {}
    for row, column, group in _filled(table):
        if group.finished:
            counts.setdefault(len(group.finished), []).append((row, column))
    if not counts:
        return "No run is finished yet, so we have no numbers."
    start = "Ours: mean ± standard deviation (n − 1) over seeds, " if max(counts) > 1 else "Ours: "
    if len(counts) == 1:
        count = next(iter(counts))
        return f"{start}{count} seeds." if count > 1 else f"{start}one seed each, so there is no deviation."
    parts = [f"{plural(count, 'seed')} for {_where(cells, table)}" for count, cells in sorted(counts.items(), reverse=True)]
    return f"{start}{'; '.join(parts)}."


def _where(cells: Sequence[tuple[Row, Column]], table: PaperTable) -> str:
    """List rows, with their columns unless these are all columns of the row: `FeCAM, AMGC (CIFAR-100, T = 10)`."""
    rows: dict[str, list[str]] = {}
    for row, column in cells:
        rows.setdefault(row.name, []).append(column.label)
    full = {row.name: sum(group is not None for group in row.groups) for row in table.rows}
    return ", ".join(f"{name} ({'; '.join(own)})" if len(own) < full[name] else name for name, own in rows.items())


def _unfinished(table: PaperTable) -> list[str]:
    unfinished = [
        f"{row.name}, {column.label}, seed {run.config.get('seed')} ({run.done} of {len(run.sizes)} tasks)"
        for row, column, group in _filled(table)
        for run in group.runs
        if not run.finished
    ]
    return [f"Not counted because they are unfinished: {'; '.join(unfinished)}."] if unfinished else []


def _departures(table: PaperTable) -> list[str]:
    """List where settings differ from the paper's; rows that differ in the same way are listed together."""
    alike: dict[str, list[tuple[Row, Column]]] = {}
    for row, column, group in _filled(table):
        if column.in_paper and (found := departures(group.runs[0])):
            more = f" and {len(found) - MAX_SETTINGS} more" if len(found) > MAX_SETTINGS else ""
            alike.setdefault(", ".join(found[:MAX_SETTINGS]) + more, []).append((row, column))
    notes = [f"{_where(cells, table)}: {text}." for text, cells in alike.items()]
    if notes:
        notes.insert(0, "Settings that differ from the paper's (in brackets: the preset paper-DATA-tT), so compare with care:")
    for column in table.columns:
        kinds = dict.fromkeys(str(group.runs[0].config.get("features")) for _, at, group in _filled(table) if at == column)
        if not column.in_paper and len(kinds) > 1:
            notes.append(f"{column.label}: the rows differ in their features ({', '.join(kinds)}).")
    return notes


def _renamed(table: PaperTable) -> list[str]:
    known: dict[str, dict[str, None]] = {}
    for row, _, group in _filled(table):
        for run in group.runs:
            if run.method != row.key:
                known.setdefault(row.key, {})[run.method] = None
    named = [f"{name} ({', '.join(kinds)})" for name, kinds in known.items()]
    return [f"Rows named by the user, with their methods: {', '.join(named)}."] if named else []


def _conflicting_amgc(table: PaperTable) -> list[str]:
    """Note that the paper prints two different LA of AMGC."""
    if table.number == 1 or not any(column.in_paper for column in table.columns):
        return []
    pairs = []
    for column in table.columns:
        here, first = (figures(number, "amgc", column.data, column.tasks) for number in (table.number, 1))
        if here and column.in_paper and here["LA"] != first["LA"]:
            pairs.append(f"{here['LA']:.1f} here and {first['LA']:.1f} there on {column.name}")
    return [f"The paper's LA of AMGC in Tables 2 and 3 differs from that in Table 1: {'; '.join(pairs)}."] if pairs else []


def _signed(value: float) -> str:
    """
    >>> _signed(1.26), _signed(-23.1), _signed(0.0)
    ('+1.3', '−23.1', '0.0')
    """
    return f"{value:+.1f}".replace("-", "−") if value else "0.0"
