"""Fixtures shared by all tests."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import pytest


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each process begin with its share of the slow tests, so that all finish at about the same time.

    xdist gives each process a part of the list, and moves tests from the end of one part to a process that has nothing left to
    do. With other kernels, run fewer variants.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [
        item
        for number in range(processes)
        for tests in (slow, others)
        for item in tests[len(tests) * number // processes : len(tests) * (number + 1) // processes]
    ]
    if "AMGC_CPUS" in os.environ:
        kept = representatives(items, *map(int, os.environ["AMGC_CPUS"].split("/")))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def representatives(items: list[pytest.Item], share: int, shares: int) -> set[pytest.Item]:
    """Return, of each parametrised test, variants that have each value of each parameter once, not all combinations.

    Of these, return one share: every `shares`-th variant, but at least one of each test.
    """
    kept: dict[pytest.Item, str] = {}
    seen: set[tuple[str, str, int]] = set()
    for enough in (
        all,
        any,
    ):  # first variants in which every value is new, such as (0, 0) and (1, 1); then what is still missing
        for item in items:
            given = item.callspec.params if hasattr(item, "callspec") else {}
            values = {(item.nodeid.partition("[")[0], name, id(value)) for name, value in given.items()}
            if item not in kept and (not values or enough(value not in seen for value in values)):
                kept[item] = item.nodeid.partition("[")[0]
                seen |= values
    variants: dict[str, list[pytest.Item]] = {}
    for item, test in kept.items():
        variants.setdefault(test, []).append(item)
    return {item for own in variants.values() for item in own[share % len(own) :: shares]}


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep states for undo in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMGC_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Do not wait until files reach the disk. The tests write thousands of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def installed_packages_stay() -> Iterator[None]:
    """Versions and entry points are looked up once: each run asks for them, and reading them is a good part of a tiny run."""
    from lightning_fabric.utilities import registry  # here, because the process that starts the others needs no torch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "version", cache(importlib.metadata.version))
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        yield


@pytest.fixture(scope="session", autouse=True)
def rough_estimates() -> Iterator[None]:
    """Time one step, not three, for the cost estimate of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("amgc.engine.cost.STEPS", 1)
        yield


@pytest.fixture(scope="session")
def timm() -> Iterator[ModuleType]:
    """Return timm. If torchvision is of another build, declare the operators that it misses; no test calls them."""
    import torch

    if importlib.util.find_spec("timm") is None:
        pytest.skip("the extra timm is not installed")
    library = torch.library.Library("torchvision", "FRAGMENT")  # the operators live as long as this does
    try:
        importlib.import_module("torchvision")
    except Exception:  # a torchvision of another build raises what it likes
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        module = importlib.import_module("timm")
    except Exception as error:  # a broken torchvision, huggingface_hub or safetensors: nothing that amgc could mend
        pytest.skip(f"timm does not import: {error!r}")
    yield module
