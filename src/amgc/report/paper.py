"""The paper's Tables 1 to 3: rows, columns and numbers, and where the settings of a run differ from the paper's.

The numbers are stored in the presets `paper-DATA-tTASKS.toml`, beside the settings that they belong to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from amgc.features import extractors
from amgc.files import MOST_JSON, read_bytes, read_json
from amgc.methods.registry import methods
from amgc.options import merged
from amgc.runs import RunRecord, flat
from amgc.runs.folder import PLAN

PRESETS = Path(__file__).parents[1] / "presets"
NAMES = {"imagenet-subset": "ImageNet-Subset", "tiny-imagenet": "Tiny-ImageNet", "cifar100": "CIFAR-100"}
CLASSES = {"imagenet-subset": 100, "tiny-imagenet": 200, "cifar100": 100}
# The paper prints another LA of AMGC in Tables 2 and 3 (these values) than in Table 1 (the presets' values).
AMGC_LA_ABLATED = {"imagenet-subset": 33.0, "cifar100": 30.6}


@dataclass(frozen=True)
class Layout:
    """One of the paper's tables: its rows (method and printed name) and its columns."""

    title: str
    rows: Mapping[str, str]
    data: tuple[str, ...]
    tasks: tuple[int, ...]


TABLES = {
    1: Layout(
        "methods compared",
        {"ewc": "EWC", "il2a": "IL2A", "pass": "PASS", "ssre": "SSRE", "fetril": "FeTrIL", "fecam": "FeCAM", "amgc": "AMGC"},
        ("imagenet-subset", "tiny-imagenet", "cifar100"),
        (10, 20),
    ),
    2: Layout(
        "parts of AMGC",
        {"sblc": "SBLC", "sbndbolc": "SBnDBoLC", "sbgc": "SBGC", "dblc": "DBLC", "dbgc": "DBGC", "amgc": "AMGC"},
        ("imagenet-subset", "cifar100"),
        (20,),
    ),
    3: Layout(
        "kinds of margin", {"dbgc": "DBGC", "dbgc-sm": "DBGC+SM", "amgc": "AMGC"}, ("imagenet-subset", "cifar100"), (20,)
    ),
}


def sizes_of(data: str, tasks: int) -> tuple[int, ...]:
    """Return the task sizes of the paper, which splits its data sets into equal tasks."""
    return (CLASSES[data] // tasks,) * tasks


def figures(table: int, method: str, data: str, tasks: int) -> dict[str, float]:
    """Return LA and AIA in percent as the table prints them, or {} if it has no such cell.

    >>> figures(1, "amgc", "cifar100", 20), figures(2, "amgc", "cifar100", 20), figures(2, "amgc", "cifar100", 10)
    ({'LA': 30.8, 'AIA': 42.5}, {'LA': 30.6, 'AIA': 42.5}, {})
    """
    layout = TABLES[table]
    if method not in layout.rows or data not in layout.data or tasks not in layout.tasks:
        return {}
    found: dict[str, float] = _preset(data, tasks)["paper"][method]
    return found | {"LA": AMGC_LA_ABLATED[data]} if table > 1 and method == "amgc" else found


def departures(run: RunRecord) -> list[str]:
    """List the settings in which a run on the paper's data and tasks differs from the paper's preset.

    The preset's value is in brackets; network and epochs come first: `["width 0.25 (1.0)", "first.epochs 60 (400)"]`.
    """
    preset = _preset(str(run.config["data"]), len(run.sizes))
    own, theirs = _network(run.config), _network(preset)
    if run.config.get("features") == theirs["features"]:
        entry = methods().get(run.method)
        if entry is not None:
            hyper = merged(entry.hyper, preset.get("only", {}).get(run.method, {}))
            theirs |= flat(asdict(hyper))
            own |= flat(run.config.get("hyper", {}))
    else:  # with other features, no other setting is comparable
        own, theirs = {"features": own["features"]}, {"features": theirs["features"]}
    own["natural_order"], theirs["natural_order"] = bool(run.config.get("natural_order")), False
    differing = [key for key in theirs if key in own and _plain(own[key]) != _plain(theirs[key])]
    return [f"{key} {own[key]} ({theirs[key]})" for key in sorted(differing, key=_importance)]


def plan_figures(folder: Path) -> dict[str, dict[str, float]]:
    """Return the paper's LA and AIA by method, in percent, from the plan.json that `amgc run PRESET` writes."""
    try:
        found: Any = read_json(folder / PLAN)["paper"]
        return {str(name): {str(key): float(value) for key, value in pair.items()} for name, pair in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # without a plan, or with a damaged one, the paper's numbers are not shown


@cache
def _preset(data: str, tasks: int) -> dict[str, Any]:
    return toml(PRESETS / f"paper-{data}-t{tasks}.toml")


def toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(read_bytes(path, MOST_JSON).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"invalid TOML: {error}") from error


def _network(config: dict[str, Any]) -> dict[str, Any]:
    """Return the extractor and all its options, defaults included."""
    name = str(config.get("features"))
    known = extractors().get(name.partition(":")[0])
    usual = asdict(known.options) if known is not None else {}
    return {"features": name} | usual | dict(config.get("features_options") or {})


def _importance(key: str) -> int:
    """Rank the network first, then epochs, then options of the method, then the rest of the training."""
    if not key.startswith(("first.", "later.")):
        return 0 if key in ("features", "width", "stem") else 2
    return 1 if key.endswith(".epochs") else 3


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value  # JSON has no tuples
