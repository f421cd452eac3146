"""Code shared by the benchmarks: side-by-side timing, and keeping the output with command, commit and machine."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


@contextlib.contextmanager
def kept(name: str, rerun: Sequence[str] = ()) -> Iterator[None]:
    """Print as usual, and write the output to results/NAME.txt when the benchmark has finished.

    rerun : first words of the parts that are run. Paragraphs of the file with other first words and other headings stay in it.
    """
    captured = io.StringIO()

    class Both(io.TextIOBase):
        def write(self, text: str) -> int:
            sys.__stdout__.write(text)
            sys.__stdout__.flush()
            return captured.write(text)

    with contextlib.redirect_stdout(Both()):
        print(f"command: {_command()}")
        print(f"commit:  {_commit()}")
        print(f"machine: {_processor()}, {os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} threads,")
        print(f"         load {os.getloadavg()[0]:.2f} at the start, Python {platform.python_version()}\n")
        yield
    if "--quick" in sys.argv:  # a look whether it runs, not a result
        return
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.txt"
    file.write_text(with_earlier(captured.getvalue(), file.read_text() if rerun and file.exists() else "", rerun))


def with_earlier(new: str, old: str, rerun: Sequence[str]) -> str:
    """Return the new output with the paragraphs of the old one that belong to other parts. The first paragraph says so.

    >>> new, old = "command: b\\n\\nnear\\n  9\\n", "command: a\\ncommit:  1\\n\\nfar\\n  5\\n\\nnear\\n  7\\n"
    >>> with_earlier(new, old, ["near"]).split("\\n")
    ['command: b', '         far: commit 1', '', 'near', '  9', '', 'far', '  5', '']
    """
    (heading, *body), (before, *others) = (re.split(r"\n\s*\n", text.rstrip("\n")) for text in (new, old))
    first = {part.split("\n")[0] for part in body}
    stay = [part for part in others if part.split("\n")[0] not in first and not part.startswith(tuple(rerun))]
    names = list(dict.fromkeys(re.split(r"[,:\n]", part)[0] for part in stay))
    commit = re.search(r"^commit: +(.*)$", before, flags=re.M)
    for one in names:
        own = re.search(rf"^ +{re.escape(one)}: (commit .*)$", before, flags=re.M)
        heading += f"\n         {one}: " + (own[1] if own else f"commit {commit[1] if commit else 'unknown'}")
    return "\n\n".join([heading, *body, *stay]) + "\n"


class Points:
    """A kept file that grows row by row, so that a long benchmark can be stopped and continued.

    Each row ends with the commit, the number of threads, and the load of the machine when the point began.
    """

    def __init__(self, name: str, heading: str, again: bool = False) -> None:
        self.file, self.heading = RESULTS / f"{name}.txt", heading
        text = "" if again or "--quick" in sys.argv or not self.file.exists() else self.file.read_text()
        self.rows = dict(re.findall(r"^  (\S.*?)   (\S.*)$", text.partition("\n\n")[2], flags=re.M))
        print(heading)

    def __contains__(self, name: str) -> bool:
        return name in self.rows

    def measure(self, name: str, make: Callable[[], str]) -> None:
        """Add the row that `make` returns, and write the file."""
        load = os.getloadavg()[0]
        row = make()
        self.rows[name] = f"{row}   ({_commit()}, {_threads()}, load {load:.1f})"
        print(f"  {name}   {self.rows[name]}", flush=True)
        if "--quick" not in sys.argv:
            RESULTS.mkdir(exist_ok=True)
            machine = f"{_processor()}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"
            first = f"command: {_command()}\nmachine: {machine}\n         each row with its commit and the load when it began"
            lines = [f"  {name}   {row}" for name, row in self.rows.items()]
            self.file.write_text("\n".join([first, "", self.heading, *lines, ""]))


def _command() -> str:
    return f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".rstrip()


def _threads() -> str:
    count = torch.get_num_threads()
    return "1 thread" if count == 1 else f"{count} threads"


class Times(dict[str, float]):
    """Median seconds by name, and `spread`, the fastest and the slowest."""

    spread: dict[str, tuple[float, float]]


def side_by_side(jobs: dict[str, Callable[[], object]], rounds: int = 5) -> Times:
    """Time each job. The jobs take turns, so that a slow moment of the machine affects all of them."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            taken[name].append(time.perf_counter() - start)
    result = Times({name: statistics.median(times) for name, times in taken.items()})
    result.spread = {name: (min(times), max(times)) for name, times in taken.items()}
    return result


def shared_data() -> Path | None:
    """Return the folder with development data, if there is one: $AMGC_SHARED, or ../shared next to the repository."""
    folder = Path(os.environ.get("AMGC_SHARED", Path(__file__).parents[2] / "shared"))
    return folder if folder.is_dir() else None


def features_file() -> Path | None:
    """Return the file of ResNet-18 features, if there is one."""
    folder = shared_data()
    file = folder and folder / "data/features/cifar100-resnet18-t10.npz"
    return file if file and file.is_file() else None


def _commit() -> str:
    def git(*arguments: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, cwd=here).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "../src", "*.py")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"
