"""`amgc compare METHOD … --data NAME … --tasks T … --seeds N [flags of amgc run]`."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from amgc.cli.errors import FAILED, STOPPED, UsageError, check_text
from amgc.runs.folder import PLAN, RUN

if TYPE_CHECKING:
    from rich.console import Console

    from amgc.cli.flags import Parsed
    from amgc.cli.jobs.executors import Executor
    from amgc.cli.jobs.grid import Cell
    from amgc.cli.jobs.schedule import Work
    from amgc.engine.config import Config

MAX_SEEDS = 100
MAX_JOBS = 4  # by default, because each job needs the memory of a run

DESCRIPTION = """Compare methods: one run for each method, data set, number of tasks and seed. METHODs come first. Finished runs
are reused and stopped ones are resumed, so the same command again runs what is missing. All other flags are those of `amgc run`
and apply to all runs, such as --later.epochs 5 or --features resnet18."""


def flag(text: str, metavar: str | None = None, default: str | None = None) -> Any:
    """Declare the help of a flag."""
    return arg(help=text, metavar=metavar, help_behavior_hint=None if default is None else f"(default: {default})")


@dataclass(frozen=True)
class Compare:
    """What to compare, and where to run it."""

    methods: Annotated[Positional[tuple[str, ...]], flag("names, or .py files", "[METHOD …]", "the preset's")] = ()
    all: Annotated[bool, flag("all methods that `amgc list methods` lists")] = False
    data: Annotated[tuple[str, ...], flag("data sources, presets or .toml files, as for `amgc run`", "NAME …", "digits")] = ()
    preset: Annotated[str | None, flag("settings for all data", "PRESET", "a preset that is given as data")] = None
    tasks: Annotated[tuple[int, ...], flag("numbers of tasks", "T …", "the preset's")] = ()
    seeds: Annotated[
        tuple[int, ...], flag("number of seeds, from 1993 or --seed; or several seeds", "N | SEED SEED …", "1")
    ] = (1,)
    out: Annotated[str, flag("folder of the runs", "FOLDER")] = "runs/compare"
    jobs: Annotated[int, flag("runs at a time; 0: one per core and at most 4, or one per GPU; on a cluster all")] = 0
    on: Annotated[Literal["local", "ray", "slurm"], flag("this machine, or a cluster whose nodes share the files")] = "local"
    address: Annotated[
        str | None, flag("address of a Ray cluster", "ADDRESS", "$RAY_ADDRESS, otherwise a local one is started")
    ] = None
    cpus: Annotated[int, flag("cores per job on a cluster")] = 1
    gpus: Annotated[int, flag("GPUs per job on a cluster")] = 0
    partition: Annotated[str | None, flag("Slurm partition", "NAME", "Slurm's default")] = None
    minutes: Annotated[int, flag("time limit of a Slurm job; a run that needs more continues in another job")] = 240
    dry_run: Annotated[bool, flag("list the runs and estimate the time of missing ones; writes nothing")] = False


def compare(arguments: Sequence[str]) -> int:
    check_text(arguments)
    own, run_flags = split_flags(arguments)
    given = tyro.cli(Compare, args=own, prog="amgc compare", description=DESCRIPTION)
    check(given, run_flags)
    folder = Path(given.out)
    cells = make_cells(given, run_flags)

    from amgc.cli.jobs import grid
    from amgc.cli.jobs.schedule import Work

    grid.check(cells)
    if given.on != "local" and any(cell.config.machine.devices > 1 for cell in cells):
        raise UsageError(f"on {given.on} a job is one process; --devices is for runs on this machine.")
    works = [Work.of(cell) for cell in cells]
    if given.dry_run:
        from amgc.cli.jobs.board import print_costs

        print_costs(works, *local_resources(given))
        return 0
    return run_missing(given, folder, works, ["compare", *arguments])


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the flags of `amgc compare` from all others, which are those of `amgc run`.

    >>> split_flags(["amgc", "lda", "--seeds", "3", "--later.epochs", "5", "--tasks=5"])
    (['amgc', 'lda', '--seeds', '3', '--tasks=5'], ['--later.epochs', '5'])
    """
    known = {"-h", "--help", *(f"--{name.replace('_', '-')}" for name in Compare.__dataclass_fields__ if name != "methods")}
    own: list[str] = []
    others: list[str] = []
    current = own
    for argument in arguments:
        if re.match(r"--?[a-zA-Z]", argument):
            name = argument.partition("=")[0].replace("_", "-")
            current = own if name in known else others
        current.append(argument)
    return own, others


def check(given: Compare, run_flags: Sequence[str]) -> None:
    """Raise UsageError for flags that contradict each other."""
    from amgc.cli.presets import names
    from amgc.methods.registry import methods

    flags = {argument.partition("=")[0].replace("_", "-") for argument in run_flags}
    if "--method" in flags:
        raise UsageError("methods come first and without --method: amgc compare METHOD …")
    if given.tasks and (other := flags & {"--sizes", "--first-classes", "--increment"}):
        raise UsageError(f"--tasks and {min(other)} both define the tasks; use only one of them.")
    for name in given.data:
        if name in methods():
            raise UsageError(f"{name!r} is a method; methods come first: amgc compare {name} --data …")
    for name in given.methods:
        if name in names() and name not in methods():
            raise UsageError(f"{name!r} is a preset; use it as data: amgc compare METHOD … --data {name}")
    if min(given.jobs, given.gpus) < 0 or min(given.cpus, given.minutes) < 1:
        raise UsageError("--jobs and --gpus must not be negative; --cpus and --minutes must be at least 1.")
    if any(count < 1 for count in given.tasks) or len(set(given.tasks)) < len(given.tasks):
        raise UsageError(f"--tasks takes distinct positive numbers, not {' '.join(map(str, given.tasks))}.")
    if given.address and given.on != "ray":
        raise UsageError("--address is the address of a Ray cluster; add --on ray.")
    folder = Path(given.out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {given.out!r} is a file; specify a folder.")
    if any((folder / name).exists() for name in (PLAN, RUN)):
        raise UsageError(f"{given.out!r} contains a run of `amgc run`; choose another --out.")


def parse_column(arguments: Sequence[str], tasks: int | None, run_flags: Sequence[str]) -> Parsed:
    """Return the configs of one data set and number of tasks, from the flags of `amgc run`."""
    from amgc.cli.flags import parse

    return parse([*arguments, *([] if tasks is None else ["--tasks", str(tasks)]), *run_flags])


def make_cells(
    given: Compare, run_flags: Any, column: Callable[[Sequence[str], int | None, Any], Parsed] = parse_column
) -> list[Cell]:
    """Return the runs of the grid, those of the first seed first. `column` makes the configs of a data set and task count."""
    from amgc.cli.jobs.grid import Cell
    from amgc.cli.run import paper
    from amgc.methods.registry import methods

    named = [*(methods() if given.all else ()), *(name for name in given.methods if not given.all or name not in methods())]
    chosen = ["--method", *named] if named else []
    parsed = {}
    for data in given.data or (None,):
        first = [] if given.preset is None and data is None else [given.preset or str(data)]
        first += ["--data", data] if given.preset is not None and data is not None else []
        for tasks in given.tasks or (None,):
            one = column([*first, *chosen], tasks, run_flags)
            names = column_name(given, one.choice.preset.name, one.choice.data.name)
            name = names, tasks_name(next(iter(one.configs.values())))
            if name in parsed:
                raise UsageError(f"two columns of the grid have the same name: {name[0]}, T = {name[1]}.")
            parsed[name] = one
    base = {config.seed for one in parsed.values() for config in one.configs.values()}
    return [
        Cell(
            folder=Path(given.out) / f"{data}-t{tasks}-s{seed}" / method,
            method=method,
            data=data,
            tasks=tasks,
            seed=seed,
            config=replace(config, seed=seed),
            paper={name: figures for name, figures in paper(one).items() if name == method},
        )
        for seed in seeds(given.seeds, min(base))
        for (data, tasks), one in parsed.items()
        for method, config in one.configs.items()
    ]


def seeds(given: Sequence[int], base: int) -> Sequence[int]:
    """Return the seeds: several values are the seeds themselves, a single value is their number.

    >>> list(seeds([3], 1993)), list(seeds([7, 5], 1993))
    ([1993, 1994, 1995], [7, 5])
    """
    if len(given) == 1:
        if not 1 <= given[0] <= MAX_SEEDS:
            raise UsageError(
                f"--seeds {given[0]} means {given[0]} seeds, but at most {MAX_SEEDS} are allowed. For a single seed, use "
                f"--seed {given[0]}."
            )
        return range(base, base + given[0])
    if len(set(given)) < max(1, len(given)):
        raise UsageError(f"--seeds takes a number or distinct seeds, not {' '.join(map(str, given))}.")
    return given


def column_name(given: Compare, preset: str, data: str) -> str:
    """Return the name of the preset or the data, as a valid folder name."""
    from amgc.cli.choice import short_name

    name = preset if preset and not (given.preset is not None and given.data) else short_name(data)
    return re.sub(r"[^\w.+-]", "_", name)


def tasks_name(config: Config) -> str:
    """Return the number of tasks, or first classes and increment."""
    if config.sizes is not None:
        return str(len(config.sizes))
    if config.tasks is not None or config.first_classes is None:
        return str(config.tasks or 1)
    return f"{config.first_classes}+{config.increment}"


def local_resources(given: Compare) -> tuple[int, int]:
    """Return the number of jobs at a time on this machine and the threads of each."""
    from amgc.data.image_files import available_cores

    jobs = given.jobs or len(visible_gpus()) or min(available_cores(), MAX_JOBS)
    return jobs, max(1, available_cores() // jobs)


def visible_gpus() -> list[str]:
    """Return the value of CUDA_VISIBLE_DEVICES for each GPU."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(place) for place in range(count)]


def make_executor(given: Compare, folder: Path) -> tuple[Executor, int]:
    """Return the executor and the threads of each job."""
    from amgc.cli.jobs.executors import Local, OnRay, OnSlurm

    if given.on == "ray":
        return OnRay(given.address, given.jobs or None, given.cpus, given.gpus), given.cpus
    if given.on == "slurm":
        return OnSlurm(folder, given.jobs or None, given.cpus, given.gpus, given.partition, given.minutes), given.cpus
    jobs, threads = local_resources(given)
    return Local(jobs, visible_gpus()), threads


def run_missing(
    given: Compare, folder: Path, works: Sequence[Work], command: Sequence[str], screen: Console | None = None
) -> int:
    """Run what is missing and print the results of all runs on `screen`, by default the terminal."""
    from amgc.cli.jobs import schedule
    from amgc.cli.jobs.board import Board, results
    from amgc.cli.jobs.grid import add_command
    from amgc.cli.progress import Quiet, console, stoppable
    from amgc.runs.folder import RunFolder

    screen, watch = screen or console(), Quiet()
    folder.mkdir(parents=True, exist_ok=True)
    with RunFolder(folder).locked():
        add_command(folder, command)
        if any(one.state != "done" for one in works):
            executor, threads = make_executor(given, folder)
            board = Board(screen, works, executor.slots)
            screen.print(board.progress(), highlight=False)
            try:
                with stoppable(watch), board:
                    schedule.run_all(works, executor, schedule.job_environment(command, threads), watch, board.show)
            finally:
                executor.close()
    failed = [one for one in works if one.state == "failed"]
    screen.print()
    screen.print(results(works))
    screen.print(f"\nRuns: {folder}\nShow the table again: amgc show {folder}", highlight=False, markup=False, soft_wrap=True)
    for one in failed:
        print(f"failed: {one.cell}: {one.reason}\n        log: {one.cell.log}", file=sys.stderr, flush=True)
    if watch.stop:
        print(f"Stopped; continue with the same command: {shlex.join(['amgc', *command])}", file=sys.stderr, flush=True)
        return STOPPED
    return FAILED if failed else 0
