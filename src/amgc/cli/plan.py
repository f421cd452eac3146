"""The runs of a command: one method in a folder, or several in subfolders that share the training of task 1.

FOLDER/plan.json stores them, so that `amgc resume` can continue.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amgc.cli.errors import STOPPED, Outcome
from amgc.cli.progress import Quiet, Shown, lasting_output, stoppable
from amgc.cli.results import show_summary
from amgc.engine.config import Config, absolute_path, read_config
from amgc.files import FileFormatError, read_json, write_json
from amgc.methods.registry import find
from amgc.options import decode
from amgc.runs.folder import PLAN, RunFolder, is_first_process

if TYPE_CHECKING:
    from rich.console import Console

    from amgc.data import Dataset

VERSION = 1  # of plan.json


@dataclass(frozen=True)
class Plan:
    """Configs by method name. The methods in `reusing` start from the training of task 1 of the method `source`."""

    folder: Path
    configs: dict[str, Config]
    paper: dict[str, dict[str, float]] = field(default_factory=dict)
    source: str | None = None
    reusing: tuple[str, ...] = ()

    def place(self, name: str) -> Path:
        """Return the run folder of a method."""
        return self.folder if len(self.configs) == 1 else self.folder / name

    def config_of(self, name: str) -> Config:
        """Return the config of a method, with the folder from which it reuses the training of task 1."""
        config = self.configs[name]
        if name not in self.reusing or self.source is None:
            return config
        return replace(config, machine=replace(config.machine, start=absolute_path(self.place(self.source))))

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {"version": VERSION, "paper": self.paper, "giver": self.source, "takers": self.reusing}
        write_json(self.folder / PLAN, content | {"runs": {name: config.to_json() for name, config in self.configs.items()}})

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Read the plan of a folder; a run without a plan is its own plan."""
        path = folder / PLAN
        if not path.is_file():
            config = read_config(folder, {})
            return cls(folder, {find(config.method).name: config})
        content = read_json(path)
        try:
            found: _PlanFile = decode(_PlanFile, content, "the plan")
            if found.version != VERSION:
                raise FileFormatError(f"{str(path)!r} has version {found.version}; this amgc reads version {VERSION}.")
            found.check()
        except FileFormatError:
            raise
        except ValueError as error:
            raise FileFormatError(f"{str(path)!r} is damaged: {error}") from error
        try:
            configs = {name: _config(name, values) for name, values in found.runs.items()}
            return cls(folder, configs, found.paper, found.giver, found.takers)
        except ValueError as error:
            raise FileFormatError(f"{str(path)!r} cannot be read: {error}") from error


@dataclass(frozen=True)
class _PlanFile:
    """The contents of plan.json."""

    version: int
    runs: dict[str, dict[str, Any]]
    paper: dict[str, dict[str, float]]
    giver: str | None
    takers: tuple[str, ...]

    def check(self) -> None:
        """Raise ValueError if the names do not fit together. Names of methods are names of folders."""
        for name in self.runs:
            if Path(name).name != name or name.startswith("."):
                raise ValueError(f"{name!r} in runs is not the name of a method.")
        if not self.runs:
            raise ValueError("runs is empty.")
        for field_name, names in (("giver", [self.giver] if self.giver is not None else []), ("takers", self.takers)):
            if unknown := [name for name in names if name not in self.runs]:
                raise ValueError(f"{field_name} names {unknown[0]!r}, which is not one of the runs.")


def _config(name: str, values: dict[str, Any]) -> Config:
    try:
        return Config.from_json(values)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"runs.{name}: {error if isinstance(error, ValueError) else repr(error)}") from error


def shared(plan: Plan) -> Plan:
    """Return the plan in which methods with the same training of task 1 share it."""
    from amgc.engine.config import first_task_key

    able = {name: config for name, config in plan.configs.items() if find(config.method).kind.common_start}
    source = next((name for name, config in able.items() if not find(config.method).kind.sees_old_data), None)
    if source is None:
        return plan
    order = list(plan.configs)
    reusing = [
        name
        for name, config in able.items()
        if order.index(name) > order.index(source)
        and config.machine.start is None
        and first_task_key(config) == first_task_key(plan.configs[source])
    ]
    return replace(plan, source=source if reusing else None, reusing=tuple(reusing))


def run_plan(plan: Plan, console: Console, *, quiet: bool = False, dry_run: bool = False) -> int:
    """Execute all runs of a new plan and print the summary. Returns the exit code."""
    from amgc.engine.run import run

    quiet = quiet and not dry_run
    shown = Quiet() if quiet or not is_first_process() else Shown(console)
    plan, several = shared(plan), len(plan.configs) > 1
    with working(plan, shown) as outcome:
        dataset = survey_data(plan, shown) if dry_run else load_data(plan, shown, quiet)
        if dry_run or (several and not quiet):
            for name in plan.configs:
                shown.begin_method(name)
                run(plan.config_of(name), plan.place(name), shown, dataset, dry_run=True)
            if several:
                shown.sum_up(plan.source, plan.reusing)
        if dry_run:
            return 0
        shown.before_start = plan.write if is_first_process() else None
        for name in plan.configs:
            shown.begin_method(name)
            run(plan.config_of(name), plan.place(name), shown, dataset)
        if is_first_process():
            show_summary(plan.folder, console)
    return outcome.code


def resume_plan(plan: Plan, console: Console, machine: dict[str, Any], *, quiet: bool = False, summary: bool = True) -> int:
    """Continue the unfinished runs of a plan with changed machine settings, and print the summary. Returns the exit code."""
    from amgc.engine.run import resume, run

    shown = Quiet() if quiet or not is_first_process() else Shown(console)
    # Computed before any run starts, so that all processes get the same result.
    begun = {name for name in plan.configs if RunFolder(plan.place(name)).exists}
    unfinished = [name for name in plan.configs if name not in begun or not is_finished(plan.place(name))]
    with working(plan, shown) as outcome:
        if not unfinished:
            shown.print_line(f"{plan.folder} is already finished.")
        dataset = load_data(plan, shown, quiet) if unfinished else None
        for name in unfinished:
            shown.begin_method(name)
            config = plan.config_of(name)
            if name in begun:
                moved = {"start": config.machine.start} if name in plan.reusing else {}  # the folder may have moved
                resume(plan.place(name), shown, dataset, **(moved | machine))
            else:
                run(replace(config, machine=replace(config.machine, **machine)), plan.place(name), shown, dataset)
        if summary and is_first_process():
            show_summary(plan.folder, console)
    return outcome.code


def is_finished(folder: Path) -> bool:
    """Return whether a run is finished. A damaged run is not: resuming it rewrites its metrics or reports the error."""
    from amgc.runs import RunError, load_run

    try:
        return load_run(folder).finished
    except RunError:
        return False


@contextmanager
def working(plan: Plan, shown: Quiet) -> Iterator[Outcome]:
    """Within the block, a request to stop saves the runs. Then print how to continue."""
    from amgc.engine.watch import Stopped

    # Fabric's banners, and its warnings about its own calls of torch, are of no use to a user of amgc.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning_fabric")
    outcome = Outcome()
    with lasting_output(), stoppable(shown):
        try:
            yield outcome
        except Stopped:
            outcome.code = STOPPED
            if is_first_process():
                begun = (plan.folder / PLAN).exists() or RunFolder(plan.folder).exists
                text = f"Stopped; continue with: amgc resume {plan.folder}" if begun else "Stopped; nothing was written."
                print(text, file=sys.stderr, flush=True)


def load_data(plan: Plan, shown: Quiet, quiet: bool) -> Dataset:
    """Load the data set, once for all methods. Unless `quiet`, a message says if images are decoded into the cache."""
    from amgc.data import load
    from amgc.engine.watch import Stopped

    config = next(iter(plan.configs.values()))
    log, handler = logging.getLogger("amgc.data"), logging.StreamHandler()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.WARNING if quiet or not is_first_process() else logging.INFO)
    shown.reading = True
    try:
        return load(config.data, **config.data_options)
    except KeyboardInterrupt:
        raise Stopped from None
    finally:
        shown.reading = False
        log.removeHandler(handler)
        log.setLevel(before)


def survey_data(plan: Plan, shown: Quiet) -> Dataset:
    """Return the data set for a dry run, without reading images, and print what a run would decode."""
    from amgc.data.cache import default_folder
    from amgc.data.image_files import Files
    from amgc.data.images import size_in_bytes
    from amgc.data.registry import survey
    from amgc.text import byte_size

    config = next(iter(plan.configs.values()))
    dataset, cache = survey(config.data, **config.data_options), config.data_options.get("cache", True)
    parts = [dataset.train.pixels, dataset.test.pixels]
    if isinstance(parts[0], Files) and cache is not False:
        place = (default_folder() if cache is True else Path(cache)) / "images"
        needed = byte_size(sum(map(size_in_bytes, parts)))
        shown.print_line(
            f"data: {sum(map(len, parts)):,} images will be decoded once into {place}, which takes {needed} of disk unless "
            "they are cached already (--data.cache FOLDER chooses another folder, False disables the cache)"
        )
    return dataset
