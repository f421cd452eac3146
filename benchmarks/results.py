"""Fill the pages that quote measured figures, from benchmarks/pages/*.md and the kept output in benchmarks/results/*.txt.

    python benchmarks/results.py          # writes docs/{results,bench,fast,scale}.md, plots (SVG) and README.md's table
    python benchmarks/results.py --check  # only reports which of them are out of date; exit code 1 if any is

Edit the text in benchmarks/pages/ (Jinja), not in the generated pages. Figures are looked up by the row names that the
benchmarks print, so after a benchmark has run again, only this script must be run. Figures that are in no file say so.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path
from typing import Any

import _scale
from _bench_plot import bench_plot
from _bench_runs import Run, decided, read, seeds
from _kept import RESULTS, kept
from _photo_plot import photos_plot
from _privacy_plot import privacy_plot
from ablation import DOUBTFUL, cells
from bench import METHODS as BENCH
from bench import TASKS as BENCH_TASKS
from competitors import FROZEN, TRAINED
from warm import METHODS as WARM

from amgc.features.builtin import PatchesOptions
from amgc.files import atomic
from amgc.report.paper import PRESETS, figures, toml

ROOT = Path(__file__).parents[1]
TEMPLATES = Path(__file__).parent / "pages"
README_TABLE = re.compile(r"(<!-- Made by benchmarks/results.py -->\n).*?(<!-- End -->)", flags=re.S)
HEADLINE = "2400"  # filters
CONTROL = "800"  # filters of the rows that are compared on the same features
# As reported for these papers, not measured here: LA, AIA, cost. README.md names their sources.
PUBLISHED = {
    "GATF": (52.0, 64.4, "trained network"),
    "APR": (57.9, 70.0, "trained network, stronger augmentation"),
    "DCNet": (65.4, 75.8, "best published that we know of; trained network, 700 epochs per task"),
}


def signed(value: float) -> str:
    """Format a difference in points, with a typographic minus.

    >>> signed(1.26), signed(-23.1), signed(0.04)
    ('+1.3', '−23.1', '0.0')
    """
    rounded = round(value, 1)
    return f"{rounded:+.1f}".replace("-", "−") if rounded else "0.0"


def beside(ours: str, paper: float | None) -> str:
    """Return the paper's number and, in brackets, ours minus it.

    >>> beside("23.5 ± 1.0", 32.7), beside("6.3", None)
    ('32.7 (−9.2)', '')
    """
    return "" if paper is None else f"{paper:.1f} ({signed(float(ours.split()[0]) - paper)})"


def best(values: list[str]) -> list[str]:
    """Return the values with the largest in bold.

    >>> best(["9.5", "27.7 ± 1.3"])
    ['9.5', '**27.7 ± 1.3**']
    """
    most = max(float(value.split()[0]) for value in values)
    return [f"**{value}**" if float(value.split()[0]) == most else value for value in values]


def table_1(names: list[str]) -> list[dict[str, Any]]:
    """Return the rows of competitors.txt: command, our numbers, and the paper's where the method has the paper's settings."""
    rows = []
    for name in names:
        method, flags = (TRAINED | FROZEN)[name]
        la, aia, old, new, minutes, size, *_, runs = kept("competitors").fields(name, part="minutes MB/class")
        paper = figures(1, method, "cifar100", 10) if name == method else {}
        row = {"command": " ".join(["--method", method, *flags]), "LA": la, "AIA": aia, "old": old, "new": new}
        row |= {f"{key}_paper": beside(row[key], paper.get(key)) for key in ("LA", "AIA")}
        rows.append(row | {"minutes": minutes, "MB": size, "runs": runs.split(",")[0]})
    for key in ("LA", "AIA"):
        for row, value in zip(rows, best([row[key] for row in rows]), strict=True):
            row[key] = value
    return rows


def table_2(names: list[str]) -> list[dict[str, Any]]:
    """Return the rows of ablation.txt at T = 10 and 20, with the numbers of the paper's Tables 2 and 3 for T = 20."""
    known = {name: (method, flags) for name, method, flags in cells("table2", 20)}
    rows = []
    for name in names:
        method, flags = known[name]
        row: dict[str, Any] = {"command": " ".join(["--method", method, *flags])}
        for tasks in (10, 20):
            la, aia, _, old, new, *_ = kept("ablation").numbers(name, part=f"table2, T = {tasks}:")
            row[f"T{tasks}"] = {"LA": la, "AIA": aia, "old": old, "new": new}
        paper = (figures(2, method, "cifar100", 20) or figures(3, method, "cifar100", 20)) if name == method else {}
        row["paper"] = {key: beside(row["T20"][key], paper.get(key)) for key in ("LA", "AIA")}
        row["doubtful"] = name in DOUBTFUL
        rows.append(row)
    return rows


def preset_filters(preset: str = "fast-cifar100-t10") -> str:
    """Return the number of filters that the fast preset has on CIFAR-100 images."""
    options = toml(PRESETS / f"{preset}.toml").get("features_options", {})
    return str(PatchesOptions(**options).settled(3, 32, 32).filters)


def fast(filters: str, part: str = "front") -> dict[str, str]:
    """Return the run with this many filters at T = 10."""
    found = [row for row in kept("fast_path").table(part) if row["filters"] == filters]
    if len(found) != 1:
        raise LookupError(f"benchmarks/results/fast_path.txt has {len(found)} rows of {filters} filters in {part!r}, not one.")
    return found[0]


def best_runs(part: str) -> list[dict[str, str]]:
    """Return the runs of the preset best-cifar100-t10 in this part of fast_path.txt; none if it was not run yet."""
    results = kept("fast_path")
    return results.table(part) if re.search(rf"^{part}$", results.text, flags=re.M) else []


def bench(tasks: int) -> list[dict[str, str]]:
    """Return the rows of bench.txt for this number of tasks, in the order of LA; those that were not run follow."""
    rows = {row["method"]: row for row in kept("bench").table(f"T = {tasks}")}
    missing = [name for name in BENCH if name not in rows]
    if missing:
        raise LookupError(f"benchmarks/results/bench.txt has no line of {', '.join(missing)} with T = {tasks}.")
    done = [row for row in rows.values() if row["LA"] != "–"]
    return sorted(done, key=lambda row: -float(row["LA"].split()[0])) + [row for row in rows.values() if row["LA"] == "–"]


def bench_runs() -> list[Run]:
    """Return the single runs of bench.txt."""
    return read(kept("bench").text)


def headline() -> list[tuple[str, float, float, str, bool]]:
    """Return the rows of the plot in README.md: name, LA, AIA, cost, and whether it is ours."""
    paper, control = figures(1, "amgc", "cifar100", 10), f"{CONTROL} filters, T = 10"
    rows = [("the paper's AMGC", paper["LA"], paper["AIA"], "trained ResNet-18, 200 epochs per task", False)]
    rows += [(name, *values, False) for name, values in PUBLISHED.items()]
    run = (best_runs("best") or [fast(HEADLINE)])[0]
    lda = [float(value) for value in kept("control").numbers("lda", control)[:2]]
    same = [float(value) for value in kept("control").numbers("amgc", control)[:2]]
    name, small = f"ours, {int(run['filters']):,} filters", "no training"
    if best_runs("best"):
        name, small = "ours, `best-cifar100-t10`", "small networks, trained on task 1 only"
    cost = f"**{small}; {math.ceil(int(run['seconds']) / 60)} minutes in all, two CPU cores, {run['peak GB']} GB**"
    rows.append((name, float(run["LA"]), float(run["AIA"]), cost, True))
    minutes = math.ceil(int(fast(CONTROL)["seconds"]) / 60)
    rows.append((f"ours, {CONTROL} filters", *same, f"no training, {minutes} minutes, two CPU cores", True))
    rows.append((f"plain `lda` on the same {CONTROL} filters", *lda, "control: most of the gain comes from the features", True))
    return rows


def readme(text: str) -> str:
    """Return README.md with its table filled in. Of the published methods, the table has only the best."""
    best_published = max(PUBLISHED, key=lambda name: PUBLISHED[name][0])
    lines = ["| CIFAR-100, ten tasks, cold start | LA | AIA | |", "|---|---|---|---|"]
    for name, la, aia, cost, ours in headline():
        if name in PUBLISHED and name != best_published:
            continue
        bold = "**" if ours and cost.startswith("**") else ""
        lines.append(f"| {bold}{name}{bold} | {bold}{la:.1f}{bold} | {bold}{aia:.1f}{bold} | {cost} |")
    made, count = README_TABLE.subn(lambda found: f"{found[1]}{chr(10).join(lines)}\n{found[2]}", text)
    if count != 1:
        raise LookupError(f"README.md has {count} places like {README_TABLE.pattern!r}, not one.")
    return made


def headline_plot() -> str:
    """Return an SVG bar chart of the LA of each row."""
    rows = headline()
    width, left, step = 760, 310, 30
    scale = (width - left - 60) / 70  # pixels per point
    parts = []
    for place, (name, la, _, _, ours) in enumerate(rows):
        y, colour = 12 + place * step, "#0072B2" if ours else "#9aa7b3"
        label = name.replace("`", "")
        parts.append(f'<text x="{left - 10}" y="{y + 16}" text-anchor="end" font-size="14" fill="#222">{label}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{la * scale:.0f}" height="22" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{left + la * scale + 8:.0f}" y="{y + 16}" font-size="14" fill="#222">{la:.1f}</text>')
    height = 12 + len(rows) * step + 24
    note = "accuracy on all 100 classes after ten tasks, %; blue: ours, minutes on two CPU cores"
    parts.append(f'<text x="{left}" y="{height - 8}" font-size="12" fill="#555" text-anchor="middle">{note}</text>')
    box = f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    title = "<title>Last accuracy on CIFAR-100 in ten tasks: published methods and ours</title>"
    return "\n".join([head, title, f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


def filled(template: str) -> str:
    """Return the page made from a template."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {
        "points": lambda value: f"{value:.1f}",
        "signed": signed,
        "minutes": lambda seconds: f"{int(seconds) / 60:.1f}",
        "thousands": lambda count: f"{int(count):,}",
        "minus": lambda text: str(text).replace("-", "−"),
    }
    environment.globals |= {
        "kept": kept,
        "has": lambda name: (RESULTS / f"{name}.txt").is_file(),
        "paper": figures,
        "table_1": table_1,
        "table_2": table_2,
        "beside": beside,
        "fast": fast,
        "best_runs": best_runs,
        "bench": bench,
        "bench_methods": len(BENCH),
        "bench_decided": lambda tasks: decided(bench_runs(), tasks),
        "bench_seeds": lambda tasks: seeds(bench_runs(), tasks, BENCH),
        "published": PUBLISHED,
        "preset_filters": preset_filters,
        "warm_methods": WARM,
        "scale": _scale,
    }
    return environment.get_template(template).render()


def pages() -> dict[Path, str]:
    """Return every generated file with its text."""
    made = {ROOT / "docs" / path.name: filled(path.name) for path in sorted(TEMPLATES.glob("*.md"))}
    made[ROOT / "docs" / "headline.svg"] = headline_plot()
    made[ROOT / "docs" / "bench.svg"] = bench_plot(bench_runs(), BENCH_TASKS)
    made[ROOT / "docs" / "photos.svg"] = photos_plot(kept("photos"))
    made[ROOT / "docs" / "privacy.svg"] = privacy_plot(kept)
    return made | {ROOT / "README.md": readme((ROOT / "README.md").read_text(encoding="utf-8"))}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="write nothing; report the pages that are not up to date")
    check = arguments.parse_args().check
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if not check:
            with atomic(path) as temporary:
                temporary.write_text(made[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'not up to date; run python benchmarks/results.py' if check else 'written'}")
    if not stale:
        print("all pages are up to date")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
