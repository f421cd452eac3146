"""Compare the method of docs/add-a-method.md, with and without distillation, with fine-tuning on digits. Three seeds.

    python benchmarks/add_a_method.py          # nine short runs; resumable
    python benchmarks/add_a_method.py --quick  # one seed, one epoch; nothing is kept

The page quotes these figures.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from pathlib import Path

from _report import kept

import amgc

PAGE = Path(__file__).parents[1] / "docs" / "add-a-method.md"
ROWS: dict[str, dict[str, float]] = {"fine-tuning": {}, "E-LwF without distillation": {"distillation": 0.0}, "E-LwF": {}}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path("runs/add_a_method"))
    arguments.add_argument("--quick", action="store_true", help="one seed, one epoch, and nothing is kept")
    chosen = arguments.parse_args()
    short = {"first": {"epochs": 1}, "later": {"epochs": 1}, "tasks": 2} if chosen.quick else {}
    found = re.search(r"^```python\n(# elwf\.py\n.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert found
    with kept("add_a_method"), tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) if chosen.quick else chosen.out
        out.mkdir(parents=True, exist_ok=True)
        (out / "elwf.py").write_text(found[1])
        print("digits, T = 5, seeds 0, 1 and 2: LA, AIA, % (mean ± standard deviation)")
        for place, (name, hyper) in enumerate(ROWS.items()):
            numbers = []
            for seed in (0,) if chosen.quick else (0, 1, 2):
                method = "finetune" if name == "fine-tuning" else str(out / "elwf.py")
                (run,) = amgc.run("digits", method=method, seed=seed, out=out / f"{place}-s{seed}", **hyper, **short).values()
                numbers.append((100 * run.metrics.accuracy[-1], 100 * statistics.mean(run.metrics.accuracy)))
            columns = [list(values) * (1 + chosen.quick) for values in zip(*numbers, strict=True)]
            shown = [f"{statistics.mean(column):5.1f} ± {statistics.stdev(column):.1f}" for column in columns]
            print(f"  {name:<28} {'   '.join(shown)}")


if __name__ == "__main__":
    main()
