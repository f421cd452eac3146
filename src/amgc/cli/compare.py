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
    from amgc.cli.jobs.cells import Cell
    from amgc.cli.jobs.job import Executor
    from amgc.cli.jobs.schedule import Work
    from amgc.engine.config import Config

MOST_SEEDS = 100
MOST_JOBS = 4  # unless more are asked for: each needs the memory of a run

ABOUT = """Methods side by side: a run for each method, data set, number of tasks and seed; METHODs come first. Finished runs
are reused and stopped ones go on: the same command again does what is missing. Every other flag is one of `amgc run`, for all
runs, as --later.epochs 5 or --features resnet18."""


def told(text: str, metavar: str | None = None, default: str | None = None) -> Any:
    """A flag's help."""
    return arg(help=text, metavar=metavar, help_behavior_hint=None if default is None else f"(default: {default})")


@dataclass(frozen=True)
class Compare:
    """What is to be compared, and where."""

    methods: Annotated[Positional[tuple[str, ...]], told("names, or .py files", "[METHOD …]", "the preset's")] = ()
    all: Annotated[bool, told("every method that `amgc list methods` names")] = False
    data: Annotated[tuple[str, ...], told("data sources, presets or .toml files, as for `amgc run`", "NAME …", "digits")] = ()
    preset: Annotated[str | None, told("settings for all data", "PRESET", "a preset that is named as data")] = None
    tasks: Annotated[tuple[int, ...], told("numbers of tasks", "T …", "the preset's")] = ()
    seeds: Annotated[tuple[int, ...], told("how many, from 1993 or --seed on; or several seeds", "N | SEED SEED …", "1")] = (1,)
    out: Annotated[str, told("where the runs go, or are", "FOLDER")] = "runs/compare"
    jobs: Annotated[int, told("runs at a time; 0: one per core and at most 4, or one per GPU; on a cluster all")] = 0
    on: Annotated[Literal["local", "ray", "slurm"], told("this machine, or a cluster whose nodes share their files")] = "local"
    address: Annotated[str | None, told("of a Ray cluster", "ADDRESS", "$RAY_ADDRESS, else one is started here")] = None
    cpus: Annotated[int, told("cores of a job on a cluster")] = 1
    gpus: Annotated[int, told("GPUs of a job on a cluster")] = 0
    partition: Annotated[str | None, told("of Slurm", "NAME", "Slurm's own")] = None
    minutes: Annotated[int, told("that Slurm gives a job; one that needs more goes on in the next")] = 240
    dry_run: Annotated[bool, told("list the runs, measure what is missing, and write nothing")] = False


def main(arguments: Sequence[str]) -> int:
    check_text(arguments)
    own, handed = divide(arguments)
    given = tyro.cli(Compare, args=own, prog="amgc compare", description=ABOUT)
    check(given, handed)
    folder = Path(given.out)
    cells = make_cells(given, handed)

    from amgc.cli.jobs import cells as there
    from amgc.cli.jobs.schedule import Work

    there.check(cells)
    if given.on != "local" and any(cell.config.machine.devices > 1 for cell in cells):
        raise UsageError(f"on {given.on} a job is one process; --devices is for runs on this machine.")
    works = [Work.of(cell) for cell in cells]
    if given.dry_run:
        from amgc.cli.jobs.costs import tell_costs

        tell_costs(works, *room(given))
        return 0
    return carry_out(given, folder, works, ["compare", *arguments])


def divide(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags of `compare` with their values, and all others, which are those of `amgc run`.

    >>> divide(["amgc", "lda", "--seeds", "3", "--later.epochs", "5", "--tasks=5"])
    (['amgc', 'lda', '--seeds', '3', '--tasks=5'], ['--later.epochs', '5'])
    """
    known = {"-h", "--help", *(f"--{name.replace('_', '-')}" for name in Compare.__dataclass_fields__ if name != "methods")}
    own: list[str] = []
    handed: list[str] = []
    current = own
    for argument in arguments:
        if re.match(r"--?[a-zA-Z]", argument):
            name = argument.partition("=")[0].replace("_", "-")
            current = own if name in known else handed
        current.append(argument)
    return own, handed


def check(given: Compare, handed: Sequence[str]) -> None:
    """What can be seen to be wrong before anything is looked up."""
    from amgc.cli.presets import names
    from amgc.methods.registry import methods

    flags = {argument.partition("=")[0].replace("_", "-") for argument in handed}
    if "--method" in flags:
        raise UsageError("methods come first, and without --method: amgc compare METHOD …")
    if given.tasks and (other := flags & {"--sizes", "--first-classes", "--increment"}):
        raise UsageError(f"--tasks and {min(other)} both say how to split the classes; give one of them.")
    for name in given.data:
        if name in methods() or name.endswith(".py"):
            raise UsageError(f"{name!r} is a method: methods come first, amgc compare {name} --data …")
    for name in given.methods:
        if name in names() and name not in methods():
            raise UsageError(f"{name!r} is a preset: amgc compare METHOD … --data {name}")
    if min(given.jobs, given.gpus) < 0 or min(given.cpus, given.minutes) < 1:
        raise UsageError("--jobs and --gpus must not be negative; --cpus and --minutes must be at least 1.")
    if any(count < 1 for count in given.tasks) or len(set(given.tasks)) < len(given.tasks):
        raise UsageError(f"--tasks takes different positive numbers, not {' '.join(map(str, given.tasks))}.")
    if given.address and given.on != "ray":
        raise UsageError("--address is a Ray cluster's; say --on ray, too.")
    folder = Path(given.out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {given.out!r} is a file; name a folder.")
    if any((folder / name).exists() for name in (PLAN, RUN)):
        raise UsageError(f"{given.out!r} holds what `amgc run` made; choose another --out.")


def parse_column(arguments: Sequence[str], tasks: int | None, handed: Sequence[str]) -> Parsed:
    """Return the configs of one data set and number of tasks, from the flags of `amgc run` in `handed`."""
    from amgc.cli.flags import parse

    return parse([*arguments, *([] if tasks is None else ["--tasks", str(tasks)]), *handed])


def make_cells(
    given: Compare, handed: Any, column: Callable[[Sequence[str], int | None, Any], Parsed] = parse_column
) -> list[Cell]:
    """Return the grid, the first seed of everything first. `column` makes the configs of a data set and number of tasks."""
    from amgc.cli.jobs.cells import Cell
    from amgc.cli.run import paper
    from amgc.methods.registry import methods

    named = [*(methods() if given.all else ()), *(name for name in given.methods if not given.all or name not in methods())]
    chosen = ["--method", *named] if named else []
    parsed = {}
    for data in given.data or (None,):
        first = [] if given.preset is None and data is None else [given.preset or str(data)]
        first += ["--data", data] if given.preset is not None and data is not None else []
        for tasks in given.tasks or (None,):
            one = column([*first, *chosen], tasks, handed)
            name = column_name(given, one.choice.preset.name, one.choice.data), tasks_name(next(iter(one.configs.values())))
            if name in parsed:
                raise UsageError(f"two columns of the grid would have the name {name[0]}, T = {name[1]}.")
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
    """Several are themselves; one is a number of them.

    >>> list(seeds([3], 1993)), list(seeds([7, 5], 1993))
    ([1993, 1994, 1995], [7, 5])
    """
    if len(given) == 1:
        if not 1 <= given[0] <= MOST_SEEDS:
            raise UsageError(
                f"--seeds {given[0]} asks for {given[0]} seeds, of at most {MOST_SEEDS}; the one seed {given[0]} is "
                f"--seed {given[0]}."
            )
        return range(base, base + given[0])
    if len(set(given)) < max(1, len(given)):
        raise UsageError(f"--seeds takes a number, or different seeds; not {' '.join(map(str, given))}.")
    return given


def column_name(given: Compare, preset: str, data: str) -> str:
    """The preset's name, unless the data were named beside it; fit for a folder."""
    from amgc.cli.choice import short_name

    name = preset if preset and not (given.preset is not None and given.data) else short_name(data)
    return re.sub(r"[^\w.+-]", "_", name)


def tasks_name(config: Config) -> str:
    if config.sizes is not None:
        return str(len(config.sizes))
    if config.tasks is not None or config.first_classes is None:
        return str(config.tasks or 1)
    return f"{config.first_classes}+{config.increment}"


def room(given: Compare) -> tuple[int, int]:
    """Jobs at a time on this machine, and threads of each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = given.jobs or len(visible_gpus()) or min(cores, MOST_JOBS)
    return jobs, max(1, cores // jobs)


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES has to be for each of the GPUs."""
    import torch

    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(place) for place in range(count)]


def make_executor(given: Compare, folder: Path) -> tuple[Executor, int]:
    """Where the jobs run, and how many threads each has."""
    if given.on == "ray":
        from amgc.cli.jobs.on_ray import OnRay

        return OnRay(given.address, given.jobs or None, given.cpus, given.gpus), given.cpus
    if given.on == "slurm":
        from amgc.cli.jobs.on_slurm import OnSlurm

        return OnSlurm(folder, given.jobs or None, given.cpus, given.gpus, given.partition, given.minutes), given.cpus
    from amgc.cli.jobs.local import Local

    jobs, threads = room(given)
    return Local(jobs, visible_gpus()), threads


def carry_out(
    given: Compare, folder: Path, works: Sequence[Work], command: Sequence[str], screen: Console | None = None
) -> int:
    """Run what is missing, and show all on `screen`, by default the terminal."""
    from amgc.cli.jobs import schedule
    from amgc.cli.jobs.board import Board, results
    from amgc.cli.jobs.cells import Grid
    from amgc.cli.progress import Quiet, console, stoppable
    from amgc.runs.folder import RunFolder

    screen, watch = screen or console(), Quiet()
    folder.mkdir(parents=True, exist_ok=True)
    with RunFolder(folder).locked():
        grid = Grid(folder, [one.cell for one in works], command)
        if any(one.state != "done" for one in works):
            executor, threads = make_executor(given, folder)
            grid.write({})
            board = Board(screen, works, executor.slots)
            screen.print(board.progress(), highlight=False)
            try:
                with stoppable(watch), board:
                    schedule.carry_out(works, executor, schedule.job_environment(command, threads), watch, board.show)
            finally:
                executor.close()
        failed = [one for one in works if one.state == "failed"]
        grid.write({one.cell: one.reason for one in failed})
    screen.print()
    screen.print(results(works))
    screen.print(f"\nRuns: {folder}\nSee them again: amgc show {folder}", highlight=False, markup=False, soft_wrap=True)
    for one in failed:
        print(f"failed: {one.cell}: {one.reason}\n        log: {one.cell.log}", file=sys.stderr, flush=True)
    if watch.stop:
        print(f"Stopped; go on with the same command: {shlex.join(['amgc', *command])}", file=sys.stderr, flush=True)
        return STOPPED
    return FAILED if failed else 0
