"""`run`, `compare` and `load_run`: the commands of the same names, as functions."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amgc.api.runs import Comparison, Runs
from amgc.runs.folder import COMMAND, PLAN, RunFolder

if TYPE_CHECKING:
    from amgc.cli.flags import Parsed
    from amgc.cli.plan import Plan
    from amgc.engine.config import Config


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

    Calling it again with the same settings returns the finished runs, and resumes interrupted ones.

    Parameters
    ----------
    preset : name of a preset, path of a .toml file, or data source; `digits` if neither it nor `data` is given.
    method : name or .py file of a method, or several. The preset's methods by default.
    data, features : data source and feature extractor. The preset's by default.
    out : folder of the run. By default `runs/NAME`, or the next free `runs/NAME-2`, `-3` and so on.
    progress : print the estimated cost and the progress.
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
    from amgc.api.settings import MACHINE, flags_of, make_configs
    from amgc.cli.errors import STOPPED
    from amgc.cli.plan import Plan, resume_plan, shared
    from amgc.cli.progress import console
    from amgc.cli.run import check_start, paper

    given = {"method": method, "data": data, "features": features} | settings
    parsed = make_configs(preset, given)
    check_start(parsed)
    machine = vars(next(iter(parsed.configs.values())).machine)
    folder = _folder(out, parsed.choice.name, parsed.configs)
    if (plan := _read_plan(folder)) is None:
        plan = shared(Plan(folder, parsed.configs, paper(parsed)))
        plan.write()
    changed = {name: machine[name] for name in MACHINE if name in settings}
    try:
        with _recorded(["run", *flags_of(preset, given)]):
            code = resume_plan(plan, console(), changed, quiet=not progress, summary=False)
    finally:
        _remove_empty(plan)
    if code == STOPPED:
        raise KeyboardInterrupt(f"stopped; the same call continues {str(folder)!r}")
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

    Each run has its own process. Calling it again with the same settings computes what is missing.

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
    from rich.console import Console

    from amgc.api.settings import configs_of, flags_of, names_of
    from amgc.cli import compare as command
    from amgc.cli.errors import STOPPED
    from amgc.cli.jobs import grid
    from amgc.cli.jobs.schedule import Work

    def column(arguments: Sequence[str], count: int | None, others: dict[str, Any]) -> Parsed:
        """Return the configs of one data set and number of tasks."""
        named = flags_of(None, {"features": others.get("features")})
        left = {name: value for name, value in others.items() if name != "features"}
        return configs_of([*arguments, *named], left if count is None else left | {"tasks": count})

    own: dict[str, Any] = {
        "data": names_of(data),
        "preset": preset,
        "tasks": names_of(tasks),
        "seeds": names_of(seeds),
        "out": str(out),
    }
    given = command.Compare(names_of(methods), jobs=jobs, **own)
    flags = flags_of(None, settings)
    command.check(given, [flag for flag in flags if flag.startswith("--")])
    cells = command.make_cells(given, settings, column)
    grid.check(cells)
    works = [Work.of(cell) for cell in cells]
    line = ["compare", *given.methods, *flags_of(None, {name: value for name, value in own.items() if value}), *flags]
    screen = None if progress else Console(file=io.StringIO(), force_jupyter=False)
    code = command.run_missing(given, Path(out), works, line, screen)
    if code == STOPPED:
        raise KeyboardInterrupt(f"stopped; the same call continues {str(out)!r}")
    if failed := [f"{one.cell}: {one.reason}" for one in works if one.state == "failed"]:
        raise RuntimeError(f"{len(failed)} of {len(works)} runs failed. {'; '.join(failed)}")
    return Comparison(out, cells)


def load_run(path: str | os.PathLike[str]) -> Runs:
    """Return the runs in a folder that `run`, `compare` or the command line wrote. They may still be running.

    Parameters
    ----------
    path : the folder of a run, or a folder that holds several.
    """
    return Runs(path)


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
    """Return whether the folder holds the runs that are wanted, finished or not."""
    from amgc.engine.config import absolute, identity

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
    before = os.environ.pop(COMMAND, None)
    os.environ[COMMAND] = json.dumps(list(command))
    try:
        yield
    finally:
        del os.environ[COMMAND]
        os.environ |= {} if before is None else {COMMAND: before}
