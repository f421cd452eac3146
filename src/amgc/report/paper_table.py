"""Our runs in the layout of the paper's tables: what stands in which cell, which are best, and what a reader must know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from amgc.report.groups import Group, Spread, grouped, short_name
from amgc.report.paper import NAMES, TABLES, departures, figures, sizes_of
from amgc.report.table import percent
from amgc.runs import DEFINITIONS, RunError, RunRecord

METRICS = ("LA", "AIA")
BOUND = "joint"  # sees all old data again: no competitor of the others
SETTINGS = 6  # that are named where a run departs from the paper's


@dataclass(frozen=True)
class Column:
    """A data set and its split into tasks; two numbers wide, LA and AIA."""

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
        pieces = [(size, len(list(alike))) for size, alike in groupby(self.sizes)]
        unequal = " + ".join(f"{count} × {size}" if count > 1 else str(size) for size, count in pieces)
        return f"T = {self.tasks}, {sum(self.sizes)} classes" + (f" ({unequal})" if len(pieces) > 1 else "")

    @property
    def label(self) -> str:
        return f"{self.name}, {self.split}"


@dataclass(frozen=True)
class Cell:
    """One number of ours (a fraction) over seeds and the paper's (in percent); rank 1 is the best of ours, 2 the second."""

    ours: Spread | None = None
    paper: float | None = None
    rank: int = 0

    @property
    def shown(self) -> float | None:
        """Ours in percent, rounded as it is shown."""
        return None if self.ours is None else float(percent(self.ours.mean))

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's in points, of the numbers as they are shown."""
        return None if self.shown is None or self.paper is None else round(self.shown - self.paper, 1) + 0.0


@dataclass(frozen=True)
class Row:
    key: str  # the method's name, or the one that the user gave
    name: str  # as the paper writes it
    in_paper: bool
    cells: tuple[Cell, ...]  # LA and AIA of each column in turn
    groups: tuple[Group | None, ...]  # of each column

    @property
    def is_bound(self) -> bool:
        return any(group is not None and group.runs[0].method == BOUND for group in self.groups)


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's tables with our runs in it."""

    number: int
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()  # names that are no rows of this table

    @property
    def notes(self) -> list[str]:
        """What a reader must know; how best and second best are marked is the format's to say."""
        notes = [f"{name}: {DEFINITIONS[name]}." for name in METRICS]
        if any(cell.paper is not None for row in self.rows for cell in row.cells):
            notes.append("Also shown: the paper's number, and ours minus the paper's in points.")
        notes += [_seeds(self), *_still_going(self), *_departures(self), *_renamed(self), *_amgc_twice(self)]
        if bounds := [row.name for row in self.rows if row.is_bound]:
            notes.append(f"Trained on all data seen so far, and no part of the ranking: {', '.join(bounds)}.")
        if self.left_out:
            notes.append(f"No rows of this table, and left out: {', '.join(self.left_out)}.")
        return notes


def paper_table(number: int, runs: Sequence[tuple[str, RunRecord]]) -> PaperTable:
    """The paper's table `number` with the runs of `named_runs`: its rows first, then those that it lacks.

    Table 1 takes every method; Tables 2 and 3 their own, and what the user has given a name. The paper's columns stand there
    as soon as one run is on their data set.
    """
    layout = TABLES[number]
    for name, run in runs:
        own = str(run.config["method"])  # of a method from a file the path, whatever the file's name
        printed = layout.rows.get(name, name)
        if printed in layout.rows.values() and name != own:
            raise RunError(
                f"{str(run.path)!r} is a run of {own!r}; as {name!r} it would stand beside the paper's "
                f"{printed}. Give it another name, such as mine={run.path}."
            )
    taken = [(name, run) for name, run in runs if number == 1 or name in layout.rows or name != run.method]
    left_out = tuple(dict.fromkeys(name for name, run in runs if (name, run) not in taken))
    if not taken:
        found = f"there are only {', '.join(left_out)}" if left_out else "there is no run"
        raise ValueError(f"Table {number} has the rows {', '.join(layout.rows)}; {found}. Name other runs.")
    groups = grouped(taken)
    on = {group.data for group in groups}
    columns = [Column(data, sizes_of(data, tasks)) for data in layout.data if data in on for tasks in layout.tasks]
    columns = list(dict.fromkeys([*columns, *[Column(group.data, group.sizes) for group in groups]]))
    names = dict.fromkeys([*layout.rows, *[group.name for group in groups]])
    rows = _ranked([_row(number, name, columns, groups) for name in names])
    shown = [row for row in rows if any(row.groups) or any(cell.paper is not None for cell in row.cells)]
    return PaperTable(number, layout.title, tuple(columns), tuple(shown), left_out)


def _row(number: int, name: str, columns: Sequence[Column], groups: Sequence[Group]) -> Row:
    cells: list[Cell] = []
    own: list[Group | None] = []
    for column in columns:
        found = [group for group in groups if group.name == name and Column(group.data, group.sizes) == column]
        paper = figures(number, name, column.data, column.tasks) if column.in_paper else {}
        group = found[0] if found else None
        own.append(group)
        cells.append(Cell(group.last_accuracy if group else None, paper.get("LA")))
        cells.append(Cell(group.average_incremental_accuracy if group else None, paper.get("AIA")))
    printed = TABLES[number].rows.get(name)
    return Row(name, printed or name, printed is not None, tuple(cells), tuple(own))


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Best and second best of ours in every column, by the number as it is shown; equal numbers share a rank."""
    ranks: list[dict[float, int]] = []
    for place in range(len(rows[0].cells)):
        values = [row.cells[place].shown for row in rows if not row.is_bound]
        order = sorted({value for value in values if value is not None}, reverse=True)
        several = sum(value is not None for value in values) > 1  # the best of one is no news
        ranks.append({value: rank for rank, value in enumerate(order[:2], 1)} if several else {})
    found = []
    for row in rows:
        shown = [None if row.is_bound else cell.shown for cell in row.cells]
        places = [0 if value is None else known.get(value, 0) for value, known in zip(shown, ranks, strict=True)]
        cells = [replace(cell, rank=rank) for cell, rank in zip(row.cells, places, strict=True)]
        found.append(replace(row, cells=tuple(cells)))
    return found


def _filled(table: PaperTable) -> list[tuple[Row, Column, Group]]:
    return [
        (row, column, group)
        for column_place, column in enumerate(table.columns)
        for row in table.rows
        if (group := row.groups[column_place]) is not None
    ]


def _seeds(table: PaperTable) -> str:
    """How many runs each number of ours is of."""
    counts: dict[int, list[tuple[Row, Column]]] = {}
    for row, column, group in _filled(table):
        if group.finished:
            counts.setdefault(len(group.finished), []).append((row, column))
    if not counts:
        return "No run is finished yet, so there is no number of ours."
    start = "Ours: mean ± standard deviation (n − 1) over seeds, " if max(counts) > 1 else "Ours: "
    if len(counts) == 1:
        count = next(iter(counts))
        return f"{start}{count} seeds." if count > 1 else f"{start}one seed each, so there is no deviation."
    said = [
        f"{count} seed{'s' * (count > 1)} for {_where(cells, table)}" for count, cells in sorted(counts.items(), reverse=True)
    ]
    return f"{start}{'; '.join(said)}."


def _where(cells: Sequence[tuple[Row, Column]], table: PaperTable) -> str:
    """Rows, with their columns where it is not all that they have: `FeCAM, AMGC (CIFAR-100, T = 10)`."""
    rows: dict[str, list[str]] = {}
    for row, column in cells:
        rows.setdefault(row.name, []).append(column.label)
    full = {row.name: sum(group is not None for group in row.groups) for row in table.rows}
    return ", ".join(f"{name} ({'; '.join(own)})" if len(own) < full[name] else name for name, own in rows.items())


def _still_going(table: PaperTable) -> list[str]:
    going = [
        f"{row.name}, {column.label}, seed {run.config.get('seed')} ({run.done} of {len(run.sizes)} tasks)"
        for row, column, group in _filled(table)
        for run in group.runs
        if not run.finished
    ]
    return [f"Not counted, as they are still going or were stopped: {'; '.join(going)}."] if going else []


def _departures(table: PaperTable) -> list[str]:
    """Where network, epochs or other settings are not the paper's; rows that depart alike are named together."""
    alike: dict[str, list[tuple[Row, Column]]] = {}
    for row, column, group in _filled(table):
        if column.in_paper and (found := departures(group.runs[0])):
            more = f" and {len(found) - SETTINGS} more" if len(found) > SETTINGS else ""
            alike.setdefault(", ".join(found[:SETTINGS]) + more, []).append((row, column))
    notes = [f"{_where(cells, table)}: {text}." for text, cells in alike.items()]
    if notes:
        notes.insert(0, "Not the paper's setting (in brackets that of the preset paper-DATA-tT), so compare with care:")
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
    said = [f"{name} ({', '.join(kinds)})" for name, kinds in known.items()]
    return [f"Rows with a name of the user's, and their methods: {', '.join(said)}."] if said else []


def _amgc_twice(table: PaperTable) -> list[str]:
    """The paper has two numbers for one thing; nobody should have to find out."""
    if table.number == 1 or not any(column.in_paper for column in table.columns):
        return []
    said = []
    for column in table.columns:
        here, first = (figures(number, "amgc", column.data, column.tasks) for number in (table.number, 1))
        if here and column.in_paper and here["LA"] != first["LA"]:
            said.append(f"{here['LA']:.1f} here and {first['LA']:.1f} there on {column.name}")
    return [f"The paper's LA of AMGC is not the same in Tables 2 and 3 as in Table 1: {'; '.join(said)}."] if said else []
