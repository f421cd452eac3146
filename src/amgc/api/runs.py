"""Runs as objects for notebooks: a mapping of records with tables, plots and data frames."""

from __future__ import annotations

import html
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amgc.report import accuracy_table, plot_accuracy
from amgc.report.table import WIDTH, as_text
from amgc.runs import Metrics, RunRecord, find_runs, labels

if TYPE_CHECKING:
    import pandas as pd


class Runs(Mapping[str, RunRecord]):
    """Runs by name: the method's name, with the settings that differ where several runs are of one method.

    `run`, `compare` and `load_run` return this object. In a notebook it is shown as a table.

    Parameters
    ----------
    path : the folder of the run, or the folder that holds the runs.

    Examples
    --------
    >>> import amgc, tempfile
    >>> runs = amgc.run("fast-digits", method=["lda", "ncm"], out=tempfile.mkdtemp() + "/digits")
    >>> list(runs)
    ['lda', 'ncm']
    >>> runs["lda"].metrics.last_accuracy > runs["ncm"].metrics.last_accuracy
    True
    >>> runs.frame()[["method", "tasks", "LA"]].shape
    (2, 3)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        found = find_runs(self.path)
        self._runs = dict(zip(labels(found), found, strict=True))

    def __getitem__(self, name: str) -> RunRecord:
        return self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def metrics(self) -> dict[str, Metrics]:
        """The metrics of each run: accuracy after each task, LA, AIA, forgetting and the accuracy matrix."""
        return {name: run.metrics for name, run in self.items()}

    @property
    def finished(self) -> bool:
        """Whether all runs have finished all their tasks."""
        return all(run.finished for run in self.values())

    def rows(self, per_task: bool = False) -> list[dict[str, Any]]:
        """Return one dictionary per run, or one per run and finished task. Accuracies are fractions."""
        rows: list[dict[str, Any]] = []
        for name, run in self.items():
            config, m, tasks = run.config, run.metrics, len(run.sizes)
            about = {"name": name, "method": run.method, "data": config.get("data"), "tasks": tasks, "seed": config.get("seed")}
            if per_task:
                columns = {"task": range(1, tasks + 1), "classes": m.seen, "accuracy": m.accuracy, "old": m.old_accuracy}
                columns |= {"new": m.new_accuracy, "first task": m.first_task_accuracy}
                rows += [about | dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=False)]
                continue
            numbers = {"LA": m.last_accuracy, "AIA": m.average_incremental_accuracy, "forgetting": m.forgetting}
            numbers["first task"] = m.first_task_accuracy[-1] if run.done else None
            rows.append(about | {"done": run.done} | numbers | {"seconds": sum(sum(task.values()) for task in run.seconds)})
        return rows

    def frame(self, per_task: bool = False) -> pd.DataFrame:
        """Return a pandas DataFrame with a row per run, or, with `per_task`, a row per run and finished task.

        Accuracies are fractions. Needs pandas.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("a DataFrame needs pandas: pip install pandas") from error
        return pd.DataFrame(self.rows(per_task))

    def table(self, width: int = WIDTH) -> str:
        """Return the table that `amgc show` prints, with the definition of each column below it."""
        return as_text(accuracy_table(list(self.values()), width), width)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Plot:
        """Plot the accuracy on all seen classes after each task. A `path` that ends in .png or .svg is written as well."""
        from PIL import Image

        with tempfile.TemporaryDirectory() as folder:
            drawn, png = Path(folder) / "accuracy.png", io.BytesIO()
            for file in [drawn] if path is None else [path, drawn]:
                plot_accuracy(list(self.values()), file)
            with Image.open(drawn) as image:  # 64 colours: a third of the size, because notebooks store it
                image.convert("RGB").quantize(64).save(png, "PNG", optimize=True)
        return Plot(png.getvalue())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self.path)!r}: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        from amgc.report.html import html_table

        return html_table(accuracy_table(list(self.values())))


class Comparison(Runs):
    """Runs of `compare`. The table has a row per method and the mean ± standard deviation over the seeds."""

    def __init__(self, path: str | os.PathLike[str], cells: Sequence[Any]) -> None:
        super().__init__(path)
        self._cells = cells

    def table(self, width: int = WIDTH) -> str:
        """Return the table that `amgc compare` prints: LA and AIA by method, data set and number of tasks."""
        from amgc.cli.jobs.board import results
        from amgc.cli.jobs.schedule import Work

        return as_text(results([Work.of(cell) for cell in self._cells]), width)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.table())}</pre>"


class Plot:
    """A plot as PNG data, the content of the file `png`. A notebook shows it."""

    def __init__(self, png: bytes) -> None:
        self.png = png

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"<Plot, {len(self.png)} bytes of PNG; use plot(path) to write a file>"
