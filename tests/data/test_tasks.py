"""Class orders, task sizes, and which images a task contains."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amgc.data import Dataset, Images, TaskStream, class_order, load, order_of, split_tasks
from amgc.data.images import InMemory, Mapped


def toy(classes: int, per_class: int = 2) -> Dataset:
    """Return a data set in which every pixel is the label, so that images and labels can be compared."""
    labels = np.tile(np.arange(classes), per_class)
    pixels = np.broadcast_to(labels.astype(np.uint8)[:, None, None, None], (len(labels), 1, 2, 2)).copy()
    images = Images.of(pixels, labels)
    return Dataset(images, images, tuple(f"class {k}" for k in range(classes)), "toy", (0.5,), (0.25,))


def test_seed_1993_gives_the_order_of_pycil() -> None:
    assert class_order(100, 1993)[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert class_order(200, 1993)[:10] == (168, 136, 51, 9, 183, 101, 171, 99, 42, 159)


def test_class_order_leaves_numpys_global_state_alone() -> None:
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    class_order(100, 1993)
    assert np.random.rand() == expected


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_class_order_is_numpys_legacy_permutation(count: int, seed: int) -> None:
    state = np.random.get_state()
    np.random.seed(seed)
    expected = np.random.permutation(count)
    np.random.set_state(state)
    assert class_order(count, seed) == tuple(expected)


def test_no_seed_keeps_the_natural_order() -> None:
    assert class_order(4, None) == (0, 1, 2, 3)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_first_and_increment_split_as_pycil_does(count: int, first: int, increment: int) -> None:
    if first > count:
        with pytest.raises(ValueError, match="only"):
            split_tasks(count, first=first, increment=increment)
        return
    expected = [first]  # utils/data_manager.py, written plainly
    while sum(expected) + increment < count:
        expected.append(increment)
    if count - sum(expected) > 0:
        expected.append(count - sum(expected))
    assert split_tasks(count, first=first, increment=increment) == tuple(expected)


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 200))
def test_equal_tasks_are_equal_or_refused_with_a_number_that_works(count: int, tasks: int) -> None:
    if count % tasks == 0:
        sizes = split_tasks(count, tasks=tasks)
        assert len(sizes) == tasks and sum(sizes) == count and len(set(sizes)) == 1
        return
    with pytest.raises(ValueError) as caught:
        split_tasks(count, tasks=tasks)
    if tasks < count:
        proposed = [int(number) for number in re.findall(r" into (\d+) (?:and|they)", str(caught.value))]
        assert len(proposed) == 2 and all(count % number == 0 for number in proposed)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"tasks": 30}, r"do not divide.*into 25 and into 50 they do, .*--tasks.*increment=4 \(--increment 4\)"),
        ({"tasks": 101}, "101 tasks need at least 101 classes"),
        ({"tasks": 0}, "at least one task"),
        ({"sizes": [50, 49]}, "sum to 99"),
        ({"sizes": [100, 0]}, "at least one class"),
        ({"first": 50}, "leave 50 of 100.*--increment"),
        ({"first": 101, "increment": 1}, "101 classes.*--first-classes"),
        ({"increment": 0}, "at least 1"),
        ({}, "exactly one way.*--tasks, or --first-classes and --increment, or --sizes"),
        ({"tasks": 10, "increment": 10}, "exactly one way"),
    ],
)
def test_an_impossible_split_says_what_to_do(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_tasks(100, **choice)


def test_one_task_and_one_class_tasks_are_possible() -> None:
    assert split_tasks(7, tasks=1) == (7,)
    assert split_tasks(7, tasks=7) == (1,) * 7
    assert split_tasks(7, increment=10) == (7,)


@settings(deadline=None)
@given(st.data())
def test_tasks_partition_the_training_images_and_labels_follow_the_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    order = tuple(data.draw(st.permutations(range(count))))
    increment = data.draw(st.integers(1, count))
    stream = TaskStream(toy(count), order, split_tasks(count, increment=increment))
    seen = 0
    for task in range(len(stream)):
        train, test = stream.train(task), stream.test(task)
        new = stream.classes(task)
        assert set(train.labels.tolist()) == set(new) and len(train) == 2 * len(new)
        seen += len(new)
        assert stream.seen(task) == seen and set(test.labels.tolist()) == set(range(seen))
        for images in (train, test):
            original = images.take(range(len(images)))[:, 0, 0, 0]
            assert original.tolist() == [order[label] for label in images.labels.tolist()]
    assert seen == count


def test_future_classes_are_not_to_be_reached_from_what_a_task_is_given() -> None:
    stream = TaskStream(toy(6), class_order(6, 1), (2, 2, 2))
    allowed = {stream.order[label] for label in (0, 1)}
    for images in (stream.train(0), stream.train_seen(0), stream.test(0)):
        assert isinstance(images.pixels, InMemory)
        storage = images.pixels.samples.untyped_storage()
        assert set(bytes(storage.tolist())) == allowed, "the tensor's memory holds nothing else"
        with pytest.raises(IndexError):
            images.take([len(images)])


def test_what_was_seen_is_the_training_images_of_this_task_and_all_before_it() -> None:
    dataset = dataclasses.replace(toy(7, per_class=3), test=toy(7, per_class=1).test)
    stream = TaskStream(dataset, class_order(7, 1), (3, 2, 2))
    for task in range(3):
        seen, parts = stream.train_seen(task), [stream.train(earlier) for earlier in range(task + 1)]
        assert sorted(seen.labels.tolist()) == sorted(torch.cat([part.labels for part in parts]).tolist())
        original = seen.take(range(len(seen)))[:, 0, 0, 0].tolist()
        assert original == [stream.order[label] for label in seen.labels.tolist()]
    with pytest.raises(IndexError, match="tasks are 0 to 2"):
        stream.train_seen(3)


def test_class_names_stand_in_the_order() -> None:
    stream = TaskStream(toy(3), (2, 0, 1), (1, 2))
    assert stream.class_names == ("class 2", "class 0", "class 1")


def test_an_order_may_leave_classes_out() -> None:
    dataset = toy(5)
    stream = TaskStream(dataset, order_of(["class 4", "class 1"], dataset.class_names), (1, 1))
    assert stream.order == (4, 1)
    assert stream.test(1).take(range(4))[:, 0, 0, 0].unique().tolist() == [1, 4]


@pytest.mark.parametrize(
    ("order", "sizes", "message"),
    [((0, 1, 1), (3,), "twice"), ((0, 3), (2,), "classes 0 to 2"), ((0, 1, 2), (2,), "sum to 2")],
)
def test_a_wrong_order_or_wrong_sizes_are_refused(order: Any, sizes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskStream(toy(3), order, sizes)


def test_an_unknown_class_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'cow'.*cat, dog"):
        order_of(["cat", "cow"], ["cat", "dog"])


def test_a_sample_has_as_many_images_of_each_class_as_possible_and_reads_no_others() -> None:
    class Watched(Mapped):
        def take(self, rows: torch.Tensor) -> torch.Tensor:
            read.extend(self._rows[rows].tolist())
            return super().take(rows)

        def subset(self, rows: torch.Tensor) -> Watched:
            return Watched(self._array, self._rows[rows])

    read: list[int] = []
    pixels = np.arange(12, dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)
    images = Images(torch.tensor([0] * 6 + [1] * 4 + [2] * 2), Watched(pixels))
    stream = TaskStream(Dataset(images, images, ("a", "b", "c"), "made", (0.0,), (1.0,)), (2, 0, 1), (1, 1, 1))
    found = stream.sample(range(1, 3), 5)
    assert found.labels.tolist() == [1, 2, 1, 2, 1] and found.take(range(5))[:, 0, 0, 0].tolist() == [0, 6, 1, 7, 2]
    assert sorted(read) == [0, 1, 2, 6, 7]
    assert stream.sample(range(1), 5).take(range(5))[:, 0, 0, 0].tolist() == [10, 11, 10, 11, 10]


def test_there_is_no_task_beyond_the_last() -> None:
    stream = TaskStream(toy(2), (0, 1), (1, 1))
    with pytest.raises(IndexError, match="tasks are 0 to 1"):
        stream.train(2)
    with pytest.raises(IndexError):
        stream.train(-1)


def test_labels_are_int64() -> None:
    assert TaskStream(toy(2), (1, 0), (2,)).train(0).labels.dtype == torch.int64


def test_counts_are_those_of_the_images_themselves():
    stream = TaskStream(load("digits"), class_order(10), split_tasks(10, sizes=[1, 4, 3, 2]))
    for task in range(4):
        new = stream.test(task).labels >= stream.classes(task).start
        assert stream.counts(task) == (len(stream.train(task)), int(new.sum()))


@pytest.mark.parametrize(("budget", "expected"), [(79, 24), (80, 24 + 80), (23, 0)])
def test_memory_still_to_be_needed_is_that_of_all_samples_if_they_fit_and_of_a_copy_of_the_largest_task(
    budget: int, expected: int
) -> None:
    unread = toy(5)  # 40 + 40 bytes, 8 for each class's training images
    pixels = Mapped(unread.train.take(range(10)).numpy())
    images = Images(unread.train.labels, pixels)
    unread = dataclasses.replace(unread, train=images, test=images, memory=budget)
    stream = TaskStream(unread, range(5), (3, 2))
    assert stream.shape == (1, 2, 2) and stream.bytes_to_read() == expected
    read = dataclasses.replace(toy(5), memory=budget)
    assert TaskStream(read, range(5), (3, 2)).bytes_to_read() == min(expected, 24)
