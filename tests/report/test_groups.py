"""Mean and standard deviation over seeds, and runs that are refused instead of averaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from report.conftest import WriteRun

from amgc.report.groups import Spread, grouped, named_runs
from amgc.runs import RunError

SIZES = (2, 2)


def test_mean_and_deviation_are_those_computed_by_hand(write_run: WriteRun) -> None:
    for seed, last in ((1993, 60), (1994, 66), (1995, 72)):
        write_run("amgc", SIZES, [[90], [last, last]], folder=f"runs/{seed}", seed=seed)
    write_run("finetune", SIZES, [[90], [0, 80]], folder="runs/finetune")
    amgc, finetune = grouped(named_runs([write_run("ncm", SIZES, [[50], [50, 50]], folder="runs/ncm").parent]))[:2]
    assert (amgc.name, [run.config["seed"] for run in amgc.runs], amgc.data, amgc.sizes) == (
        "amgc",
        [1993, 1994, 1995],
        "digits",
        SIZES,
    )
    assert amgc.last_accuracy == Spread(pytest.approx(0.66), pytest.approx(0.06), 3)  # (36 + 0 + 36) / 2 = 6²
    assert amgc.average_incremental_accuracy == Spread(pytest.approx(0.78), pytest.approx(0.03), 3)  # 75, 78, 81
    assert [spread.mean for spread in amgc.after(lambda metrics: metrics.accuracy)] == pytest.approx([0.9, 0.66])
    assert finetune.last_accuracy == Spread(pytest.approx(0.4), None, 1)


def test_a_run_that_is_still_going_does_not_count_but_is_there(write_run: WriteRun) -> None:
    runs = [write_run("amgc", SIZES, [[90], [60, 60]]), write_run("amgc", SIZES, [[80]], folder="other", seed=7)]
    (group,) = grouped(named_runs(runs))
    assert len(group.runs) == 2 and group.last_accuracy == Spread(pytest.approx(0.6), None, 1)
    assert [spread.count for spread in group.after(lambda metrics: metrics.accuracy)] == [1, 1]


def test_other_data_or_tasks_are_other_groups(write_run: WriteRun) -> None:
    runs = [
        write_run("amgc", SIZES, [[90], [60, 60]], folder="a"),
        write_run("amgc", SIZES, [[90], [60, 60]], folder="b", data="cifar100"),
        write_run("amgc", (1, 3), [[90], [60, 60]], folder="c"),
    ]
    assert [group.name for group in grouped(named_runs(runs))] == ["amgc"] * 3


def test_different_configs_under_one_name_are_refused_until_one_is_renamed(write_run: WriteRun) -> None:
    one = write_run("amgc", SIZES, [[90], [60, 60]], folder="one")
    other = write_run("amgc", SIZES, [[90], [60, 60]], folder="other", seed=7, hyper={"margin": 0.1})
    with pytest.raises(RunError, match=r"one.*other.*hyper.margin 0.4 and 0.1.*another name"):
        grouped(named_runs([one, other]))
    assert [group.name for group in grouped(named_runs([one, f"small margin={other}"]))] == ["amgc", "small margin"]


def test_where_a_run_computed_makes_no_difference(write_run: WriteRun) -> None:
    one = write_run("amgc", SIZES, [[90], [60, 60]], folder="one", machine={"threads": 1}, data_options={"root": "a"})
    other = write_run(
        "amgc", SIZES, [[90], [60, 60]], folder="other", seed=7, machine={"threads": 2}, data_options={"root": "b"}
    )
    assert len(grouped(named_runs([one, other]))) == 1


def test_the_same_run_never_counts_twice(write_run: WriteRun, tmp_path: Path) -> None:
    one = write_run("amgc", SIZES, [[90], [60, 60]], folder="one")
    (group,) = grouped(named_runs([one, tmp_path]))
    assert len(group.runs) == 1
    write_run("amgc", SIZES, [[90], [60, 60]], folder="copy")
    with pytest.raises(RunError, match="count twice"):
        grouped(named_runs([tmp_path]))
