"""Write `observed/task-N.json` with generated values that agree with the metrics of the run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any


def observe(folder: Path, margins: bool = True, plane: bool = True) -> Path:
    """Write observations in which errors of a class are confused with the next one, and class k has margin 0.1 (k + 1)."""
    about = json.loads((folder / "run.json").read_text())
    (folder / "observed").mkdir()
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        task, seen = line["task"], len(line["total"])
        cells = []
        for label, (right, images) in enumerate(zip(line["correct"], line["total"], strict=True)):
            cells += [[label, label, right]] if right else []
            cells += [[label, (label + 1) % seen, images - right]] if images > right else []
        old = seen - about["sizes"][task]
        own = [0.1 * (label + 1) if label < old else 0.0 for label in range(seen)]
        pairs = [[0.0 if one == two else own[one] * (1 + two % 3) for two in range(seen)] for one in range(seen)]
        content = {
            "version": 1,
            "task": task,
            "confusion": cells,
            "margins": {"own": own, "pairs": pairs} if margins else None,
            "plane": draw(task) if plane and seen > 1 else None,
        }
        (folder / "observed" / f"task-{task + 1}.json").write_text(json.dumps(content))
    return folder


def draw(task: int) -> dict[str, Any]:
    """Return the plane of classes 0 and 1, which approach each other and spread from task to task."""
    rng = random.Random(task)
    spread = 1 + 0.2 * task
    points = [[[rng.gauss(at, spread), rng.gauss(0, 1.5)] for _ in range(60)] for at in (-3 + task / 3, 3 - task / 3)]
    enlarged = [[1.4, 0.3], [0.3, 2.8]] if task else None
    gaussians = [{"mean": [at, 0.0], "covariance": [[1.0, 0.3], [0.3, 2.0]], "enlarged": enlarged} for at in (-3.0, 3.0)]
    return {"classes": [0, 1], "points": points, "gaussians": gaussians}
