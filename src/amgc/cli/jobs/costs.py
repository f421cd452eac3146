"""`amgc compare --dry-run`: what there is to do, and what it would cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amgc.cli.jobs.schedule import Work, mates
from amgc.cli.progress import console
from amgc.engine.run import run
from amgc.engine.watch import Watch
from amgc.text import duration, printable

if TYPE_CHECKING:
    from amgc.engine.cost import Cost


class Measured(Watch):
    """Measures a run's cost before it begins."""

    cost: Cost | None = None

    def begin_run(self, class_names: Sequence[str], sizes: Sequence[int], cost: Callable[[], Any]) -> None:
        self.cost = cost()


def tell_costs(works: Sequence[Work], jobs: int, threads: int) -> None:
    """A line for each run, and the sum. Seeds cost alike: one of them is measured."""
    from amgc.data.registry import survey

    screen = console()
    seconds: dict[tuple[str, ...], float] = {}
    total = 0.0
    datasets: dict[str, Any] = {}
    for one in works:
        if one.state == "done":
            told = "done"
        else:
            key = one.cell.method, *one.cell.column
            if key not in seconds:
                config = one.cell.config
                source = repr((config.data, config.data_options))
                dataset = datasets[source] = datasets.get(source) or survey(config.data, **config.data_options)
                giver = next((mate for mate in mates(one, works) if mate.cell.gives), one)
                start = config.machine.start if giver is one else str(giver.cell.folder)
                machine = replace(config.machine, devices=1, threads=config.machine.threads or threads, start=start)
                watch = Measured()
                run(replace(config, machine=machine), one.cell.folder / "dry-run", watch, dataset, dry_run=True)
                assert watch.cost is not None
                seconds[key] = watch.cost.seconds
            total += seconds[key]
            begun = f"goes on after {one.run.done} of {len(one.run.sizes)} tasks; whole" if one.run else "new"
            told = f"{begun}: about {duration(seconds[key])}"
        screen.print(printable(f"{one.cell}: {told}"), highlight=False, markup=False, soft_wrap=True)
    count = Counter(one.state for one in works)
    parallel = f", about {duration(total / jobs)} with {jobs} at a time" if jobs > 1 else ""
    screen.print(f"{count['done']} of {len(works)} runs done; the others: about {duration(total)}{parallel}", highlight=False)
