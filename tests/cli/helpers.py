from __future__ import annotations

import json
from pathlib import Path

from amgc.engine import checkpoint
from amgc.runs.folder import CHECKPOINT

# Two tasks of two digits, a second or so in all.
TINY = ["digits", "--classes", "0", "1", "2", "3", "--tasks", "2", "--features.dim", "8", "--first.epochs", "1"]
TINY += ["--later.epochs", "2"]


def figures(folder: Path | str) -> list[tuple[list[int], list[int]]]:
    """Return for each task the numbers of correct and of all test images of each class."""
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [(line["correct"], line["total"]) for line in lines]


def saved_in_task_2(folder: Path | str) -> bool:
    """Whether the run's checkpoint is one of a step of its second task."""
    path = Path(folder) / CHECKPOINT
    if not path.exists():
        return False
    position = checkpoint.read(path)[0]["position"]
    return bool(position["task"] == 1 and position["step"] > 0)
