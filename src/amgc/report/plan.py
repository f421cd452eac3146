"""The paper's figures, which `amgc run PRESET` keeps in the folder's plan.json beside what it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PLAN = "plan.json"


def paper_figures(folder: Path) -> dict[str, dict[str, float]]:
    """What the plan in the folder keeps of the preset's `[paper]`: per method LA and AIA, in percent."""
    try:
        figures: Any = json.loads((folder / PLAN).read_text())["paper"]
        return {str(name): {str(key): float(value) for key, value in pair.items()} for name, pair in figures.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # no plan, or a damaged one: the table stands without it
