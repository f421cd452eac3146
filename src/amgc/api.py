"""Run and compare methods from Python: `amgc.run`, `amgc.compare` and `amgc.load_run`.

The functions take what the commands of the same name take, and write the same folders. Settings, scheduling and files are
those of `amgc.cli`; tables and plots are those of `amgc.report`.
"""

from __future__ import annotations

import html
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amgc.report import Metrics, RunRecord, accuracy_table, find_runs, labels, plot_accuracy
from amgc.runs.folder import PLAN, RunFolder

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, RenderableType

    from amgc.cli.flags import Parsed
    from amgc.cli.plan import Plan
    from amgc.engine.config import Config

__all__ = ["Plot", "Runs", "compare", "load_run", "run"]

WIDTH = 100  # characters of a table
COMMAND = "AMGC_COMMAND"  # see engine.run: the command that a run's files record
# Threads that wait asleep, as on the command line (see cli.main). The variable is read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


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
        self._runs: dict[str, RunRecord] = {}
        self.reload()

    def reload(self) -> Runs:
        """Read the folder again, for runs that another process is still working on. Return the object itself."""
        found = find_runs(self.path)
        self._runs = dict(zip(labels(found), found, strict=True))
        return self

    def __getitem__(self, name: str) -> RunRecord:
        return self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def metrics(self) -> dict[str, Metrics]:
        """The metrics of each run: accuracy after each task, LA, AIA, forgetting and the accuracy matrix."""
        return {name: found.metrics for name, found in self._runs.items()}

    @property
    def finished(self) -> bool:
        """Whether all runs have finished all their tasks."""
        return all(found.finished for found in self._runs.values())

    def rows(self, per_task: bool = False) -> list[dict[str, Any]]:
        """Return one dictionary per run, or one per run and finished task. Accuracies are fractions."""
        made = []
        for name, found in self._runs.items():
            m = found.metrics
            about = {"name": name, "method": found.method, "data": found.config.get("data"), "tasks": len(found.sizes)}
            about["seed"] = found.config.get("seed")
            if per_task:
                columns = zip(m.seen, m.accuracy, m.old_accuracy, m.new_accuracy, m.first_task_accuracy, strict=False)
                keys = ("classes", "accuracy", "old", "new", "first task")
                made += [
                    about | {"task": task} | dict(zip(keys, values, strict=True)) for task, values in enumerate(columns, 1)
                ]
            else:
                numbers = {"LA": m.last_accuracy, "AIA": m.average_incremental_accuracy, "forgetting": m.forgetting}
                numbers["first task"] = m.first_task_accuracy[-1] if found.done else None
                spent = sum(sum(seconds.values()) for seconds in found.seconds)
                made.append(about | {"done": found.done} | numbers | {"seconds": spent})
        return made

    def frame(self, per_task: bool = False) -> pd.DataFrame:
        """Return a pandas DataFrame with a row per run, or, with `per_task`, a row per run and finished task.

        Accuracies are fractions. Needs pandas.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("a DataFrame needs pandas: pip install pandas") from error
        return pd.DataFrame(self.rows(per_task))

    to_frame = frame

    def table(self, width: int = WIDTH) -> str:
        """Return the table that `amgc show` prints, with the definition of each column below it."""
        return _text(accuracy_table(list(self._runs.values()), width), width)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Plot:
        """Plot the accuracy on all seen classes after each task. A `path` that ends in .png or .svg is written as well."""
        runs = list(self._runs.values())
        if path is not None:
            plot_accuracy(runs, path)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "accuracy.png"
            plot_accuracy(runs, file)
            return Plot(_smaller(file))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self.path)!r}: {', '.join(self._runs)}>"

    def _repr_html_(self) -> str:
        """Return the table for notebooks, accuracies in percent."""
        names = ("name", "data", "tasks", "seed", "LA", "AIA", "forgetting", "first task")
        body = ["".join(f"<td>{html.escape(_shown(row[name]))}</td>" for name in names) for row in self.rows()]
        head = "".join(f"<th>{name}</th>" for name in names)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in body)}</tbody></table>"


class Comparison(Runs):
    """Runs of `compare`. The table has a row per method and the mean ± standard deviation over the seeds."""

    def __init__(self, path: str | os.PathLike[str], cells: Sequence[Any]) -> None:
        super().__init__(path)
        self._cells = cells

    def table(self, width: int = WIDTH) -> str:
        """Return the table that `amgc compare` prints: LA and AIA by method, data set and number of tasks."""
        from amgc.cli.jobs.board import results
        from amgc.cli.jobs.schedule import Work

        return _text(results([Work.of(cell) for cell in self._cells]), width)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.table())}</pre>"


class Plot:
    """A plot as PNG data. A notebook shows it.

    Parameters
    ----------
    png : the content of the PNG file.
    """

    def __init__(self, png: bytes) -> None:
        self.png = png

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"<Plot, {len(self.png)} bytes of PNG; use plot(path) to write a file>"


def run(
    preset: str | None = None,
    *,
    method: str | Sequence[str] | None = None,
    data: str | None = None,
    features: str | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool = False,
    **settings: Any,
) -> Runs:
    """Train methods on a stream of tasks, as the command `amgc run` does, and return the runs.

    Calling it again with the same settings returns the runs that are there. Runs that were interrupted are resumed.

    Parameters
    ----------
    preset : name of a preset, path of a .toml file, or data source; `digits` if neither it nor `data` is given.
    method : name or .py file of a method, or several. The preset's methods by default.
    data, features : data source and feature extractor. The preset's by default.
    out : folder of the run. By default `runs/NAME`, or the next free `runs/NAME-2`, `-3` and so on.
    progress : print what the run costs and how far it is.
    **settings : any other flag of `amgc run`. The split into tasks is `tasks`, or `first_classes` and `increment`, or
        `sizes`; `classes`, `natural_order` and `seed` choose classes and their order. `first` and `later` are dictionaries of
        how task 1 and the later tasks are trained. `data_options` and `features_options` are dictionaries, too. Settings of
        the machine are named as its flags are (`device`, `threads`, ...). All others are hyper-parameters: of all methods,
        as `margin=0.4`, or of one, as `amgc={"margin": 0.4}`.

    Examples
    --------
    >>> import amgc, tempfile
    >>> folder = tempfile.mkdtemp() + "/digits"
    >>> runs = amgc.run("fast-digits", method="lda", tasks=2, shrinkage=0.01, out=folder)
    >>> runs["lda"].finished, runs["lda"].config["hyper"]["shrinkage"]
    (True, 0.01)
    """
    given: dict[str, Any] = {"method": method, "data": data, "features": features}
    command = ["run", *_flags(preset, given | settings)]
    parsed = _parsed(_arguments(preset, method, data, features), settings)

    from amgc.cli.errors import STOPPED
    from amgc.cli.plan import Plan, resume_plan, shared
    from amgc.cli.progress import console
    from amgc.cli.run import check_start, paper
    from amgc.engine.config import absolute_path

    check_start(parsed)
    wanted = parsed.configs
    machine = {name: value for name, value in settings.items() if name in _machine_names()}
    machine |= {name: absolute_path(machine[name]) for name in ("feature_cache", "start") if machine.get(name)}
    folder = _folder(out, parsed.choice.name, wanted)
    if (plan := _read_plan(folder)) is None:
        plan = shared(Plan(folder, wanted, paper(parsed)))
        plan.write()
    try:
        with _recorded(command):
            code = resume_plan(plan, console(), machine, quiet=not progress, summary=False)
    finally:
        _remove_empty(plan)
    if code == STOPPED:
        raise KeyboardInterrupt(f"stopped; the same call goes on with {str(folder)!r}")
    return Runs(folder)


def compare(
    methods: str | Sequence[str] | None = None,
    *,
    data: str | Sequence[str] = (),
    preset: str | None = None,
    tasks: int | Sequence[int] = (),
    seeds: int | Sequence[int] = 1,
    out: str | os.PathLike[str] = "runs/compare",
    jobs: int = 0,
    progress: bool = False,
    **settings: Any,
) -> Comparison:
    """Run each method on each data set, number of tasks and seed, as the command `amgc compare` does.

    The runs are computed in processes of their own. Calling it again with the same settings computes what is missing.

    Parameters
    ----------
    methods : names or .py files of methods. The preset's methods by default.
    data : data sources or presets.
    preset : a preset with the settings for all data.
    tasks : numbers of tasks. The preset's by default.
    seeds : how many seeds, from 1993 on, or the seeds themselves.
    out : folder of the runs.
    jobs : runs at a time; 0 for one per core and at most 4.
    progress : print the state of the runs.
    **settings : settings of all runs, as in `run`.

    Examples
    --------
    >>> import amgc
    >>> found = amgc.compare(["lda", "ncm"], data="fast-digits", out="compare")  # doctest: +SKIP
    >>> found.frame().groupby("method").LA.mean().idxmax()  # doctest: +SKIP
    'lda'
    """
    from amgc.cli import compare as command
    from amgc.cli.errors import STOPPED
    from amgc.cli.jobs import grid
    from amgc.cli.jobs.schedule import Work

    given = command.Compare(
        methods=_names(methods),
        data=_names(data),
        preset=preset,
        tasks=(tasks,) if isinstance(tasks, int) else tuple(tasks),
        seeds=(seeds,) if isinstance(seeds, int) else tuple(seeds),
        out=str(out),
        jobs=jobs,
    )
    handed = _flags(None, settings)
    command.check(given, [flag for flag in handed if flag.startswith("--")])
    cells = command.make_cells(given, settings, _column)
    grid.check(cells)
    works = [Work.of(cell) for cell in cells]
    own = {"data": given.data, "preset": preset, "tasks": given.tasks, "seeds": given.seeds, "out": str(out)}
    line = ["compare", *given.methods, *_flags(None, {name: value for name, value in own.items() if value}), *handed]
    code = command.carry_out(given, Path(out), works, line, None if progress else _buffer(WIDTH))
    if code == STOPPED:
        raise KeyboardInterrupt(f"stopped; the same call goes on with {str(out)!r}")
    if failed := [f"{one.cell}: {one.reason}" for one in works if one.state == "failed"]:
        raise RuntimeError(f"{len(failed)} of {len(works)} runs failed. {'; '.join(failed)}")
    return Comparison(out, cells)


def load_run(path: str | os.PathLike[str]) -> Runs:
    """Return the runs in a folder that `run`, `compare` or the command line wrote. They may still be going.

    Parameters
    ----------
    path : the folder of a run, or a folder that holds several.
    """
    return Runs(path)


# ---- settings ----------------------------------------------------------------------------------------------------------


def _arguments(preset: str | None, method: Any, data: str | None, features: str | None) -> list[str]:
    """Return what `cli.choice.choose` reads to find the flags that there are."""
    arguments = [] if preset is None else [preset]
    for flag, values in (("--method", _names(method)), ("--data", _names(data)), ("--features", _names(features))):
        arguments += [flag, *values] if values else []
    return arguments


def _column(arguments: Sequence[str], tasks: int | None, settings: dict[str, Any]) -> Parsed:
    """Return the configs of one data set and number of tasks."""
    features = settings.get("features")
    own = {name: value for name, value in settings.items() if name != "features"} | ({} if tasks is None else {"tasks": tasks})
    return _parsed([*arguments, *([] if features is None else ["--features", features])], own)


def _parsed(arguments: Sequence[str], settings: dict[str, Any]) -> Parsed:
    """Return the configs that `cli.flags.parse` makes of flags, from Python values."""
    from amgc.cli.choice import choose
    from amgc.cli.flags import SPLIT, Parsed, data_flags, features_flags, make_config
    from amgc.options import merged

    choice = choose(arguments)
    preset = choice.preset
    left = dict(settings)
    options = {
        "data_options": _options("data_options", {row.name: row.default for row in data_flags(choice)}, left),
        "features_options": _options("features_options", {row.name: row.default for row in features_flags(choice)}, left),
    }
    split = {name: left.pop(name, None) for name in SPLIT if name in left} or {n: getattr(preset, n) or None for n in SPLIT}
    split = {name: split.get(name) for name in SPLIT}
    split["sizes"] = None if split["sizes"] is None else tuple(split["sizes"])
    classes = left.pop("classes", preset.classes)
    common = options | split | {"classes": tuple(classes) if classes else None}
    common |= {name: left.pop(name, getattr(preset, name)) for name in ("natural_order", "seed")}
    machine = {name: left.pop(name) for name in _machine_names() if name in left}
    common["machine"] = merged(preset.chosen_machine(), machine)
    own = {entry.name: left.pop(entry.name, {}) for entry in choice.methods.values() if isinstance(left.get(entry.name), dict)}
    configs: dict[str, Config] = {}
    for name, entry in choice.methods.items():
        hyper = merged(merged(preset.hyper_of(entry), left), own.get(entry.name, {}))
        configs[entry.name] = make_config(choice, method=name, hyper=hyper, **common)
    return Parsed(choice, configs, out=None, dry_run=False, quiet=True)


def _options(name: str, known: dict[str, Any], left: dict[str, Any]) -> dict[str, Any]:
    """Return the options of data or features, with what `left` has of them, which is taken out of it."""
    given = left.pop(name, None) or {}
    if unknown := [option for option in given if option not in known]:
        raise ValueError(f"{name} has no option {unknown[0]!r}; there are {', '.join(known) or 'none'}.")
    return known | given


def _machine_names() -> list[str]:
    from amgc.engine.config import Machine

    return list(Machine.__dataclass_fields__)


def _names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def _flags(preset: str | None, settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the flags of the command line for the same settings. A run's files record them.

    >>> _flags("digits", {"method": ["amgc"], "tasks": 5, "later": {"epochs": 3}, "natural_order": True, "data": None})
    ['digits', '--method', 'amgc', '--tasks', '5', '--later.epochs', '3', '--natural-order']
    """
    flags = [] if preset is None else [preset]
    for name, value in settings.items():
        flag = f"--{prefix}{name.removesuffix('_options').replace('_', '-')}"
        if isinstance(value, Mapping):
            flags += _flags(None, value, f"{flag[2:]}.")
        elif isinstance(value, bool):
            flags.append(flag if value else f"--{prefix}no-{flag[2 + len(prefix) :]}")
        elif value is not None:
            several = isinstance(value, Sequence) and not isinstance(value, str)
            flags += [flag, *map(str, value if several else (value,))]
    return flags


# ---- folders -----------------------------------------------------------------------------------------------------------


def _folder(out: str | os.PathLike[str] | None, name: str, wanted: dict[str, Config]) -> Path:
    """Return the folder of the run: one that holds the same run, or a new one."""
    if out is None:
        folders = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
        return next(folder for folder in folders if not folder.exists() or _holds(folder, wanted))
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"out={str(out)!r} is a file; give a folder.")

    from amgc.cli.run import holds_run

    if holds_run(folder) and not _holds(folder, wanted):
        raise ValueError(f"{str(folder)!r} holds a run with other settings; choose another `out`, or load it with load_run.")
    return folder


def _holds(folder: Path, wanted: dict[str, Config]) -> bool:
    """Whether the folder holds the runs that are wanted, finished or not."""
    from amgc.engine.config import absolute
    from amgc.engine.from_config import identity

    plan = _read_plan(folder)
    if plan is None or list(plan.configs) != list(wanted):
        return False
    pairs = [(absolute(plan.configs[name]), wanted[name]) for name in wanted]
    return all(identity(a) == identity(b) and a.machine.precision == b.machine.precision for a, b in pairs)


def _read_plan(folder: Path) -> Plan | None:
    from amgc.cli.plan import Plan
    from amgc.files import FileFormatError

    try:
        return Plan.read(folder)
    except (FileNotFoundError, FileFormatError, ValueError):
        return None


def _remove_empty(plan: Plan) -> None:
    """Remove the folder of a plan of which no run could start."""
    if not any(RunFolder(plan.place(name)).exists for name in plan.configs):
        with suppress(OSError):  # there is something else in it
            (plan.folder / PLAN).unlink(missing_ok=True)
            plan.folder.rmdir()


@contextmanager
def _recorded(command: Sequence[str]) -> Iterator[None]:
    """Let the runs in the block record `command` instead of the arguments of the process, which is a notebook's."""
    before = os.environ.get(COMMAND)
    os.environ[COMMAND] = json.dumps(list(command))
    try:
        yield
    finally:
        if before is None:
            del os.environ[COMMAND]
        else:
            os.environ[COMMAND] = before


# ---- text --------------------------------------------------------------------------------------------------------------


def _buffer(width: int) -> Console:
    """Return a console that writes into memory, in a notebook too."""
    from rich.console import Console

    return Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)


def _text(shown: RenderableType, width: int) -> str:
    """Return what a terminal of that width would show, without colours and without spaces at the ends of lines."""
    screen = _buffer(width)
    screen.print(shown)
    assert isinstance(screen.file, io.StringIO)
    return "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines())


def _shown(value: Any) -> str:
    """
    >>> _shown(0.5), _shown(3), _shown(None)
    ('50.0', '3', '–')
    """
    from amgc.text import percent

    return percent(value) if isinstance(value, float) or value is None else str(value)


def _smaller(file: Path) -> bytes:
    """Return the PNG file with 64 colours, a third of its size: notebooks keep it."""
    from PIL import Image

    content = io.BytesIO()
    with Image.open(file) as image:
        image.convert("RGB").quantize(64).save(content, "PNG", optimize=True)
    return content.getvalue()
