"""A method does not depend on future classes, neither on their images nor on their number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from amgc.data import Dataset, Images
from amgc.engine.run import run
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Task

Kept = list[tuple[Any, dict[str, torch.Tensor]]]


def after_each_task(config: Any, folder: Path, dataset: Dataset, tasks: int) -> Kept:
    """Return the checkpoints of the first `tasks` tasks."""
    kept = []

    class Keep(Watch):
        def end_task(self, task: Task, line: dict[str, Any]) -> None:
            kept.append(tiny.saved(folder))
            self.stop = len(kept) == tasks

    with contextlib.suppress(Stopped):
        run(config, folder, Keep(), dataset)
    return kept


def with_another_future(known: int, counts: list[int]) -> Dataset:
    """Return a data set with the usual first classes, and then `counts` images of other classes."""
    usual, other = tiny.images(), tiny.images([9] * known + counts, seed=7, prefix="other")
    splits = []
    for mine, others in ((usual.train, other.train), (usual.test, other.test)):
        first, later = mine.labels < known, others.labels >= known
        pixels = torch.cat([mine.take(first.nonzero()[:, 0]), others.take(later.nonzero()[:, 0])])
        splits.append(Images.of(pixels, torch.cat([mine.labels[first], others.labels[later]])))
    names = usual.class_names[:known] + other.class_names[known:]
    return Dataset(*splits, names, "tiny", mean=usual.mean, std=usual.std)


@pytest.fixture(scope="session")
def _usual(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Kept]:
    found: dict[str, Kept] = {}

    def once(name: str) -> Kept:
        if name not in found:
            config = tiny.config(name, natural_order=True, sizes=(2, 2, 2))
            found[name] = after_each_task(config, tmp_path_factory.mktemp("usual"), tiny.images(), 2)
        return found[name]

    return once


@pytest.fixture
def usual(method: str, _usual: Callable[[str], Kept]) -> Kept:
    """Return the checkpoints of two tasks, with the usual future classes."""
    return _usual(method)


def test_other_future_classes_leave_the_state_as_it_is(method: str, usual: Kept, tmp_path: Path) -> None:
    """After task 1; the next test looks at task 2 as well."""
    config = tiny.config(method, natural_order=True, sizes=(2, 2, 2))
    ((header, tensors),) = after_each_task(config, tmp_path, with_another_future(2, [4] * 4), 1)
    assert header == usual[0][0]
    tiny.assert_equal(tensors, usual[0][1])


def test_the_number_of_future_classes_leaves_the_state_as_it_is(method: str, usual: Kept, tmp_path: Path) -> None:
    """Nor do their images. No tensor has a size that comes from classes that have not been seen."""
    compare_futures(method, (3, 5), usual, tmp_path)


@pytest.mark.parametrize("method", tiny.SOME_METHODS, indirect=True)
def test_that_there_are_no_future_classes_leaves_the_state_as_it_is(method: str, usual: Kept, tmp_path: Path) -> None:
    compare_futures(method, (), usual, tmp_path)


def compare_futures(method: str, future: tuple[int, ...], usual: Kept, tmp_path: Path) -> None:
    changed = after_each_task(
        tiny.config(method, natural_order=True, sizes=(2, 2, *future)),
        tmp_path,
        with_another_future(4, [5] * sum(future)),
        2,
    )
    for (header, tensors), (others_header, others) in zip(usual, changed, strict=True):
        assert header["lines"] == others_header["lines"] and header["method"] == others_header["method"]
        tiny.assert_equal(tensors, others)


def test_other_present_classes_change_the_state(method: str, usual: Kept, tmp_path: Path) -> None:
    """The comparison above can fail."""
    config = tiny.config(method, natural_order=True, sizes=(2, 2, 2))
    (_, one), (_, other) = usual[0], after_each_task(config, tmp_path, with_another_future(0, [9] * 6), 1)[0]
    same = [name for name, tensor in one.items() if tiny.identical(tensor, other[name])]
    assert np.mean([name in same for name in one if name.startswith(("network/", "method/"))]) < 0.5
