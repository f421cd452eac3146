"""Metrics of a run against tables computed by hand, and properties of the metrics of any run."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amgc.runs import DEFINITIONS, Metrics

# Three tasks of 2, 1 and 2 classes; 10, 20 | 5 | 10, 5 test images.
UNEQUAL = Metrics(
    [2, 1, 2],
    correct=[[9, 12], [6, 15, 4], [5, 10, 5, 8, 2]],
    total=[[10, 20], [10, 20, 5], [10, 20, 5, 10, 5]],
)


def equal_rows(first: Any, second: Any) -> bool:
    """Return whether rows are equal, where NaN equals NaN."""
    return repr(first) == repr(second)


def test_unequal_tasks_match_the_table_computed_by_hand() -> None:
    assert UNEQUAL.accuracy == pytest.approx([21 / 30, 25 / 35, 30 / 50])
    assert UNEQUAL.last_accuracy == pytest.approx(0.6)
    assert UNEQUAL.average_incremental_accuracy == pytest.approx((0.7 + 25 / 35 + 0.6) / 3)
    expected = [[0.7, math.nan, math.nan], [0.7, 0.8, math.nan], [0.5, 1.0, 10 / 15]]
    for row, wanted in zip(UNEQUAL.matrix, expected, strict=True):
        assert row == pytest.approx(wanted, nan_ok=True)
    assert UNEQUAL.forgetting == pytest.approx(((0.7 - 0.5) + (0.8 - 1.0)) / 2)
    assert UNEQUAL.backward_transfer == pytest.approx(((0.5 - 0.7) + (1.0 - 0.8)) / 2)
    assert UNEQUAL.old_accuracy == (None, pytest.approx(0.7), pytest.approx(20 / 35))
    assert UNEQUAL.new_accuracy == pytest.approx([0.7, 0.8, 10 / 15])
    assert UNEQUAL.first_task_accuracy == pytest.approx([0.7, 0.7, 0.5])
    assert UNEQUAL.per_class == pytest.approx([0.5, 0.5, 1.0, 0.8, 0.4])


def test_accuracy_counts_images_and_not_classes() -> None:
    metrics = Metrics([2], [[90, 0]], [[90, 10]])
    assert metrics.accuracy == (0.9,)


def test_forgetting_is_from_the_best_earlier_accuracy_and_backward_transfer_from_the_first() -> None:
    metrics = Metrics([1, 1, 1], [[5], [8, 5], [4, 5, 9]], [[10], [10, 10], [10, 10, 10]])
    assert metrics.forgetting == pytest.approx(((0.8 - 0.4) + 0) / 2)
    assert metrics.backward_transfer == pytest.approx(((0.4 - 0.5) + 0) / 2)


def test_forgetting_is_negative_where_the_last_task_helps_all_earlier_ones() -> None:
    assert Metrics([1, 1], [[5], [7, 1]], [[10], [10, 10]]).forgetting == pytest.approx(-0.2)


def test_one_class_tasks_have_a_matrix_of_single_classes() -> None:
    metrics = Metrics([1, 1, 1], [[10], [6, 9], [3, 8, 7]], [[10], [10, 10], [10, 10, 10]])
    assert metrics.matrix[2] == metrics.per_class == (0.3, 0.8, 0.7)


@pytest.mark.parametrize("size", [1, 5, 6, 10, 20, 40])
def test_120_classes_in_tasks_of_any_size_keep_their_boundaries(size: int) -> None:
    tasks = 120 // size
    correct = [[100 - 2 * row + column for column in range(row + 1) for _ in range(size)] for row in range(tasks)]
    correct = [[max(0, min(200, value + 100)) for value in row] for row in correct]
    total = [[200] * len(row) for row in correct]
    metrics = Metrics([size] * tasks, correct, total)
    assert len(metrics.matrix) == tasks
    for row in range(tasks):
        for column in range(tasks):
            wanted = correct[row][column * size] / 200 if column <= row else math.nan
            assert metrics.matrix[row][column] == pytest.approx(wanted, nan_ok=True)


def test_a_run_of_one_task_has_no_forgetting_no_transfer_and_no_old_accuracy() -> None:
    metrics = Metrics([3], [[1, 2, 3]], [[4, 4, 4]])
    assert metrics.last_accuracy == metrics.average_incremental_accuracy == 0.5
    assert metrics.forgetting is None
    assert metrics.backward_transfer is None
    assert metrics.old_accuracy == (None,)
    assert metrics.matrix == ((0.5,),)


def test_a_run_still_going_has_the_numbers_of_its_finished_tasks() -> None:
    going = Metrics([2, 1, 2], UNEQUAL.correct[:2], UNEQUAL.total[:2])
    short = Metrics([2, 1], UNEQUAL.correct[:2], UNEQUAL.total[:2])
    assert going.done == 2
    assert going.seen == (2, 3, 5)
    assert going.accuracy == short.accuracy
    assert equal_rows(going.matrix, short.matrix)
    assert going.forgetting == short.forgetting == 0


def test_a_run_that_has_just_begun_has_no_numbers() -> None:
    metrics = Metrics([2, 2], [], [])
    assert metrics.accuracy == metrics.matrix == metrics.per_class == metrics.first_task_accuracy == ()
    assert metrics.last_accuracy is metrics.average_incremental_accuracy is metrics.forgetting is None


@pytest.mark.parametrize(
    ("sizes", "correct", "total", "message"),
    [
        ([], [], [], "at least one task"),
        ([2, 0], [], [], r"sizes are \[2, 0\]"),
        ([2], [[1, 1]], [[2, 0]], r"class 1 .* after task 1 has 0 test images"),
        ([2], [[1, 3]], [[2, 2]], r"class 1 .* after task 1 has 3 of 2"),
        ([2], [[1, -1]], [[2, 2]], r"-1 of 2"),
        ([2, 1], [[1, 1], [1, 1]], [[2, 2], [2, 2, 2]], r"correct after task 2 has 2 numbers, but 3 classes .*sizes \[2, 1\]"),
        ([1, 1], [[1], [1, 1]], [[2], [2]], r"total after task 2 has 1 numbers"),
        ([1], [[1], [1]], [[2], [2]], "2 rows of correct, 2 rows of total and 1 tasks"),
        ([1, 1], [[1]], [], "1 rows of correct, 0 rows of total"),
        ([1], [[1.5]], [[2]], r"correct of class 0 after task 1 is 1.5; it must be a whole number"),
        ([1], [[True]], [[2]], "whole number"),
        ([1], [["1"]], [[2]], "whole number"),
        ([1, 1], [[1], [1, 1]], [[2], [3, 2]], "has 3 test images, but 2 after the task before"),
    ],
)
def test_input_that_does_not_fit_is_an_error_that_says_where(sizes: Any, correct: Any, total: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Metrics(sizes, correct, total)


def test_every_definition_is_one_line_beside_its_name_in_100_columns() -> None:
    assert all("\n" not in text and len(text) <= 88 for text in DEFINITIONS.values())


@st.composite
def measured(draw: st.DrawFn, *, falling: bool = False) -> Metrics:
    """Return the metrics of any run, finished or not. `falling`: no class ever improves."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    done = draw(st.integers(1, len(sizes)))
    total = [draw(st.integers(1, 30)) for _ in range(sum(sizes[:done]))]
    correct: list[list[int]] = []
    for task in range(done):
        row = []
        for label in range(sum(sizes[: task + 1])):
            known = bool(correct) and label < len(correct[-1])
            row.append(draw(st.integers(0, correct[-1][label] if falling and known else total[label])))
        correct.append(row)
    return Metrics(sizes, correct, [total[: len(row)] for row in correct])


@given(measured())
def test_last_accuracy_is_the_last_row_of_the_matrix_weighted_by_images(metrics: Metrics) -> None:
    weights, first = [], 0
    for size in metrics.sizes[: metrics.done]:
        weights.append(sum(metrics.total[-1][first : first + size]))
        first += size
    weighted = sum(w * a for w, a in zip(weights, metrics.matrix[-1], strict=True)) / sum(weights)
    assert metrics.last_accuracy == pytest.approx(weighted)


@given(measured(falling=True))
def test_backward_transfer_is_minus_forgetting_when_accuracy_only_falls(metrics: Metrics) -> None:
    if metrics.done == 1:
        assert metrics.forgetting is metrics.backward_transfer is None
    else:
        assert metrics.backward_transfer == pytest.approx(-(metrics.forgetting or 0))


@given(measured())
def test_forgetting_is_never_less_than_minus_the_backward_transfer(metrics: Metrics) -> None:
    if metrics.forgetting is not None and metrics.backward_transfer is not None:
        assert metrics.forgetting >= -metrics.backward_transfer - 1e-12


@given(measured(), st.randoms(use_true_random=False))
def test_the_order_of_classes_within_a_task_changes_nothing(metrics: Metrics, chance: random.Random) -> None:
    order: list[int] = []
    for size in metrics.sizes:
        order += chance.sample(range(len(order), len(order) + size), size)
    turned = Metrics(
        metrics.sizes,
        [[row[label] for label in order[: len(row)]] for row in metrics.correct],
        [[row[label] for label in order[: len(row)]] for row in metrics.total],
    )
    assert turned.accuracy == metrics.accuracy
    assert equal_rows(turned.matrix, metrics.matrix)
    assert (turned.forgetting, turned.backward_transfer) == (metrics.forgetting, metrics.backward_transfer)


@given(measured())
def test_the_columns_of_the_matrix_hold_the_new_and_the_first_tasks_accuracy(metrics: Metrics) -> None:
    assert tuple(row[task] for task, row in enumerate(metrics.matrix)) == metrics.new_accuracy
    assert tuple(row[0] for row in metrics.matrix) == metrics.first_task_accuracy


def test_importing_the_report_loads_neither_torch_nor_numpy_nor_what_draws() -> None:
    code = "import sys, amgc.report; print(sorted({'torch', 'numpy', 'matplotlib', 'rich', 'sklearn'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
