"""Write run folders as the engine does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Return `write_run("amgc", sizes, rows)`, to write a run. `rows`: percent correct on each seen task after each task."""

    def write(
        method: str,
        sizes: Sequence[int],
        rows: Sequence[Sequence[int]],
        *,
        folder: str | None = None,
        names: Sequence[str] | None = None,
        created: str = "2026-05-01T12:00:00+00:00",
        **config: Any,
    ) -> Path:
        path = tmp_path / (folder or method)
        path.mkdir(parents=True)
        about = {
            "version": 1,
            "amgc": "0.1.0",
            "versions": {"torch": "2.13.0"},
            "commit": "abc1234",
            "command": ["amgc", "run", "--method", method],
            "created": created,
            "config": {"method": method, "hyper": {"margin": 0.4}, "data": "digits", "features": "convnet", "seed": 1993}
            | config,
            "class_names": list(names or (f"class {label}" for label in range(sum(sizes)))),
            "sizes": list(sizes),
        }
        (path / "run.json").write_text(json.dumps(about))
        with (path / "metrics.jsonl").open("w") as file:
            for task, row in enumerate(rows):
                line = {
                    "task": task,
                    "correct": [share for share, size in zip(row, sizes[: task + 1], strict=False) for _ in range(size)],
                    "total": [100] * sum(sizes[: task + 1]),
                    "seconds": {"train": 10.0, "remember": 0.5, "evaluate": 1.0},
                    "peak_bytes": 500 * 2**20 + task,
                    "kept_bytes": 1024 * sum(sizes[: task + 1]),
                    "losses": {"new": 0.1},
                }
                file.write(json.dumps(line) + "\n")
        return path

    return write
