"""The kept runs of benchmarks/bench.py, a line each, so that seeds of several machines can be merged; and who is ahead."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

HEADING = "Single runs"
COLUMNS = ("method", "T", "seed", "LA", "AIA", "old", "new", "minutes", "commit")
UPPER_BOUND = "joint"  # sees old images, so it is not ranked
OWN = ("amgc", "amgc-exact", "amgc-closed", "amgc-drift", "amgc-drift-ve")


@dataclass(frozen=True)
class Run:
    """A finished run: LA, AIA, accuracy on old and on new classes (%), and minutes, as printed.

    commit : of the code; the precision follows if it was not float32.
    """

    method: str
    tasks: int
    seed: int
    la: str
    aia: str
    old: str
    new: str
    minutes: str
    commit: str

    @property
    def key(self) -> tuple[str, int, int]:
        return self.method, self.tasks, self.seed


def read(text: str) -> list[Run]:
    """Return the single runs of a kept file.

    >>> run = Run("lwf", 10, 1993, "18.4", "34.8", "15.4", "45.1", "13.5", "66d3d9e bf16-mixed")
    >>> read(f"T = 10\\nlwf  18.4\\n\\n{written([run])}\\n") == [run]
    True
    """
    part = next((part for part in re.split(r"\n\s*\n", text) if part.startswith(HEADING)), "")
    rows = [re.split(r"\s{2,}", line.strip()) for line in part.splitlines()[2:]]
    return [Run(name, int(tasks), int(seed), *rest) for name, tasks, seed, *rest in rows]


def written(runs: Collection[Run]) -> str:
    """Return the paragraph that `read` reads, in the order of tasks and seeds."""
    rows = [COLUMNS, *(tuple(str(value) for value in vars(run).values()) for run in sorted(runs, key=lambda r: r.key[1:]))]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([HEADING, *lines])


def spread(values: Sequence[float]) -> str:
    """Return the mean, and with several values their standard deviation.

    >>> spread([26.9]), spread([26.0, 28.0])
    (' 26.9', ' 27.0 ± 1.4')
    """
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):5.1f}{deviation}"


@dataclass(frozen=True)
class Behind:
    """How far a method's LA is behind the leader's, on the same seeds. deviation : of the difference; None with one seed."""

    method: str
    points: float
    deviation: float | None

    @property
    def deviations(self) -> float | None:
        """The difference in standard deviations."""
        return None if not self.deviation else self.points / self.deviation


def ranking(runs: Collection[Run], tasks: int) -> tuple[str, list[int], list[Behind]] | None:
    """Return the leader in LA, the seeds, and the other methods in their order; None if no two methods can be compared.

    Only methods with as many runs as any other are ranked.

    >>> runs = [Run(name, 10, seed, str(la), "", "", "", "", "")
    ...         for name, las in {"a": (20, 22), "b": (18, 18), "c": (30,)}.items() for seed, la in enumerate(las)]
    >>> ranking(runs, 10)
    ('a', [0, 1], [Behind(method='b', points=3.0, deviation=1.4142135623730951)])
    """
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.tasks == tasks and run.method != UPPER_BOUND:
            found.setdefault(run.method, {})[run.seed] = float(run.la)
    most = max((len(each) for each in found.values()), default=0)
    ranked = {name: each for name, each in found.items() if len(each) == most}
    if len(ranked) < 2:
        return None
    first, *others = sorted(ranked, key=lambda name: -statistics.mean(ranked[name].values()))
    behind = []
    for name in others:
        gaps = [ranked[first][seed] - la for seed, la in ranked[name].items() if seed in ranked[first]]
        if gaps:
            behind.append(Behind(name, statistics.mean(gaps), statistics.stdev(gaps) if len(gaps) > 1 else None))
    return first, sorted(ranked[first]), behind


def decided(runs: Collection[Run], tasks: int) -> str:
    """Return sentences that say who is ahead at this number of tasks, and by how many standard deviations."""
    found = ranking(runs, tasks)
    if found is None:
        return "No two methods have finished."
    first, seeds, behind = found
    leaders = [float(run.la) for run in runs if run.method == first and run.tasks == tasks]
    text = f"`{first}` has the highest LA, {spread(leaders).strip()} %. "
    if len(seeds) == 1:
        close = [other.method for other in behind if other.points <= 2]
        text += f"Every row has one class order, {seeds[0]}; "
        text += f"one run each does not tell it apart from those within two points: {listed(close) if close else 'none'}. "
    else:
        close = [other.method for other in behind if other.deviations is None or other.deviations < 2]
        text += f"On the same {len(seeds)} class orders, {listed([describe(other) for other in behind[:3]])} follow. "
        text += "Less than two standard deviations of the difference behind, so not told apart from it: "
        text += f"{listed(close) if close else 'none'}. "
    own = next((other for other in behind if other.method in OWN), None)
    if first not in OWN and own is not None:
        text += f"Of AMGC's rows the first is {describe(own)} behind."
    return text.strip()


def seeds(runs: Collection[Run], tasks: int, methods: Collection[str]) -> str:
    """Return a sentence that says how many methods have how many runs.

    >>> runs = [Run(name, 10, seed, "", "", "", "", "", "") for name, seed in [("a", 1993), ("b", 1993), ("b", 1994)]]
    >>> seeds(runs, 10, ["a", "b", "c"])
    '2 of 3 methods have rows: 1 of two seeds and 1 of one. Not run: `c`.'
    >>> seeds(runs[:1], 10, ["a", "b", "c"])
    '1 of 3 methods have rows: 1 of one seed. Run so far: `a`.'
    >>> seeds(runs, 10, ["a", "b"])
    '2 of 2 methods have rows: 1 of two seeds and 1 of one.'
    """
    count = Counter(run.method for run in runs if run.tasks == tasks)
    kinds = sorted(Counter(count.values()).items(), reverse=True)
    words = [f"{number} of {('one', 'two', 'three')[each - 1]}" for each, number in kinds]
    if words:
        first, *others = words
        words = [f"{first} seed{'s' * (kinds[0][0] > 1)}", *others]
    parts = " and ".join([*filter(None, [", ".join(words[:-1])]), *words[-1:]])
    missing = [name for name in methods if name not in count]
    text = f"{len(count)} of {len(methods)} methods have rows{': ' * bool(parts)}{parts}."
    if not missing or not count:
        return text
    return f"{text} Not run: {listed(missing)}." if len(missing) < len(count) else f"{text} Run so far: {listed(list(count))}."


def describe(other: Behind) -> str:
    """Return a method with its distance to the leader.

    >>> describe(Behind("lda", 4.44, 1.11)), describe(Behind("lda", 4.44, None))
    ('`lda`, 4.4 points (4.0 standard deviations)', '`lda`, 4.4 points')
    """
    deviations = "" if other.deviations is None else f" ({other.deviations:.1f} standard deviations)"
    return f"`{other.method}`, {other.points:.1f} points{deviations}"


def listed(names: Sequence[str]) -> str:
    """Join names; those that are not yet quoted get backquotes.

    >>> listed(["a", "b", "c"]), listed(["`a`, 1.0 points", "`b`, 2.0 points"])
    ('`a`, `b` and `c`', '`a`, 1.0 points, and `b`, 2.0 points')
    """
    quoted = [name if "`" in name else f"`{name}`" for name in names]
    last = ", and " if any("," in name for name in quoted) else " and "
    between = "; " if len(quoted) > 2 and "," in "".join(quoted) else ", "
    return last.join([*filter(None, [between.join(quoted[:-1])]), quoted[-1]])
