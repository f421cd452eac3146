"""What a run stores for the report after each task, against values computed by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from amgc import files, tensor_files
from amgc.engine import observer as observed
from amgc.engine.features import FeatureSource
from amgc.engine.observer import choose_plane, nearest
from amgc.engine.run import resume, run
from amgc.engine.session import Session
from amgc.engine.watch import Stopped, Watch
from amgc.methods.contract import Task
from amgc.methods.registry import find
from amgc.runs import load_observed, load_run

pytestmark = pytest.mark.cpus


def written(folder: Path, task: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "observed" / f"task-{task}.json").read_text())
    return content


def after(config: Any, folder: Path, dataset: Any = None) -> Session:
    """Return a session in the final state of a finished run."""
    session = Session(config, folder, Watch(), dataset or tiny.images())
    session.checkpoints.restore()
    session.method.task = session.task(len(session.stream) - 1)
    return session


def test_confusion_is_counted_from_the_scores_of_single_images(tmp_path: Path) -> None:
    config = tiny.config("finetune")
    lines = run(config, tmp_path, dataset=tiny.images())
    session, counted = after(config, tmp_path), Counter()
    for features, labels in session.features.extract(session.stream.test(2)):
        for row, label in zip(features, labels.tolist(), strict=True):
            counted[label, int(session.method.scores(row[None])[0].argmax())] += 1
    cells = written(tmp_path, 3)["confusion"]
    assert {(true, predicted): count for true, predicted, count in cells} == counted
    assert any(true != predicted for true, predicted, _ in cells), "nothing was taken for something else"
    for task, line in enumerate(lines, 1):
        cells = written(tmp_path, task)["confusion"]
        assert [sum(n for t, _, n in cells if t == k) for k in range(2 * task)] == line["total"]
        assert [sum(n for t, p, n in cells if t == p == k) for k in range(2 * task)] == line["correct"]


def test_the_test_images_are_evaluated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes, whole = [], FeatureSource.test_batches
    monkeypatch.setattr(FeatureSource, "test_batches", lambda self, index: passes.append(index) or whole(self, index))
    run(tiny.config("amgc"), tmp_path, dataset=tiny.images())
    assert passes == [0, 0, 1, 0, 1, 2]


# ---- the plane ---------------------------------------------------------------------------------------------------------


def test_the_plane_of_two_classes_by_hand() -> None:
    """Means (0, 0, 1) and (4, 0, 1). Orthogonal to their difference, the classes vary most along the third feature."""
    one = torch.tensor([[0.0, 1, 4], [0, -1, -2], [1, 0, 1], [-1, 0, 1]])
    two = torch.tensor([[4.0, 0, 3], [4, 0, -1]])
    plane = choose_plane({3: one, 5: two})
    assert plane.classes == (3, 5)
    np.testing.assert_allclose(plane.origin, [2, 0, 1], atol=1e-12)
    # within, across the first axis: (±1, ±3) of class 3 and (0, ±2) of class 5 in the second and third feature, so the
    # scatter is [[2, 6], [6, 26]], and its leading eigenvector lies at atan2(12, 2 - 26) / 2 from the second feature
    angle = np.arctan2(12, 2 - 26) / 2
    np.testing.assert_allclose(plane.axes, [[1, 0, 0], [0, np.cos(angle), np.sin(angle)]], atol=1e-12)
    np.testing.assert_allclose(plane.coordinates(one[:1]), [[-2, np.cos(angle) + 3 * np.sin(angle)]], atol=1e-12)


def test_the_nearest_classes_are_those_that_overlap_most() -> None:
    """0 and 1 have distance 1 and variance 0.01; 1 and 2 have distance 3 and variance 4 along their difference."""
    rows = {
        0: torch.tensor([[0.0, 0.1], [0.0, -0.1]]),
        1: torch.tensor([[2.0, 1.0], [-2.0, 1.0]]),
        2: torch.tensor([[1.0, 1.0], [5.0, 1.0]]),
    }
    # |δ|² / variance along it: 0 and 1: 1 / ((0.01 + 0) / 2) = 200; 1 and 2: 9 / 4; 0 and 2: 10 / ((0.001 + 3.6) / 2) = 5.55
    assert nearest(rows) == (1, 2)
    assert nearest({label: rows[label] for label in (0, 2)}) == (0, 2)
    assert nearest({7: rows[0], 4: rows[1], 5: rows[1]}) == (4, 5), "the same mean: nearer than all"


@pytest.mark.parametrize(
    "rows",
    [
        {0: torch.tensor([[1.0, 2.0, 3.0]]), 1: torch.tensor([[1.0, 5.0, 3.0]])},  # single images
        {0: torch.ones(3, 3), 1: torch.ones(2, 3)},  # one and the same feature for all
        {0: torch.tensor([[1.0, 0, 0], [3.0, 0, 0]]), 1: torch.tensor([[4.0, 0, 0], [6.0, 0, 0]])},  # all on one line
    ],
)
def test_features_without_a_plane_of_their_own_get_one(rows: dict[int, torch.Tensor]) -> None:
    axes = choose_plane(rows).axes
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-12)


def test_a_single_feature_has_a_line_for_a_plane() -> None:
    plane = choose_plane({0: torch.tensor([[1.0], [2.0]]), 1: torch.tensor([[4.0], [7.0]])})
    np.testing.assert_allclose(plane.axes, [[1], [0]])
    np.testing.assert_allclose(plane.coordinates(torch.tensor([[4.0]])), [[0.5, 0]])


def test_points_are_the_same_images_in_the_plane_of_task_1(tmp_path: Path) -> None:
    config = tiny.config("finetune", first={"extractor_lr": 0.1}, later={"extractor_lr": 0.1})
    run(config, tmp_path, dataset=tiny.images())
    session = after(config, tmp_path)
    about, tensors = tensor_files.read(tmp_path / "observed" / "plane.safetensors", "plane")
    plane = written(tmp_path, 3)["plane"]
    assert about["task"] == 0 and plane["classes"] == about["classes"] == written(tmp_path, 1)["plane"]["classes"]
    features, labels = (torch.cat(part) for part in zip(*session.features.extract(session.stream.test(2)), strict=True))
    for label, points in zip(plane["classes"], plane["points"], strict=True):
        expected = (features[labels == label].double() - tensors["origin"]) @ tensors["axes"].T
        np.testing.assert_allclose(points, expected, rtol=1e-5, atol=1e-8)
    first = np.array(written(tmp_path, 1)["plane"]["points"])
    assert np.abs(first - np.array(plane["points"])).max() > 0.01, "the extractor moves, and it shows"
    np.testing.assert_allclose(first.mean(1).mean(0), 0, atol=1e-6)  # the midpoint is the origin
    np.testing.assert_allclose(first.mean(1)[:, 1], 0, atol=1e-6)  # the means lie on the first axis


def test_no_more_points_are_kept_than_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "POINTS", 2)
    run(tiny.config("ncm"), tmp_path, dataset=tiny.images())
    assert [len(points) for points in written(tmp_path, 3)["plane"]["points"]] == [2, 2]


def test_the_pair_is_looked_for_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "ROOM", 1)
    run(tiny.config("ncm", tasks=1), tmp_path, dataset=tiny.images())
    assert written(tmp_path, 1)["plane"]["classes"] == [0, 1]


def test_with_one_class_at_a_time_the_first_two_are_shown(tmp_path: Path) -> None:
    run(tiny.config("amgc", increment=1), tmp_path, dataset=tiny.images((5, 5, 5)))
    planes = [written(tmp_path, task)["plane"] for task in (1, 2, 3)]
    assert planes[0] is None and [plane["classes"] for plane in planes[1:]] == [[0, 1]] * 2
    assert tensor_files.read(tmp_path / "observed" / "plane.safetensors", "plane")[0]["task"] == 1


def test_the_plane_of_an_interrupted_task_is_computed_again(tmp_path: Path) -> None:
    run(tiny.config("ncm"), tmp_path / "one", dataset=tiny.images())
    place = tmp_path / "other" / "observed"
    place.mkdir(parents=True)
    axes = torch.eye(2, tiny.DIM, dtype=torch.float64)
    tensor_files.write(
        place / "plane.safetensors", "plane", {"task": 0, "classes": [1, 0]}, {"axes": axes, "origin": torch.zeros(tiny.DIM)}
    )
    run(tiny.config("ncm"), tmp_path / "other", dataset=tiny.images())
    tiny.assert_same_bits(tmp_path / "one", tmp_path / "other")


def test_a_damaged_plane_is_reported(tmp_path: Path) -> None:
    class StopLater(Watch):
        def begin_task(self, task: Task, tasks: int, steps: int, done: int) -> None:
            self.stop = task.index == 1

    with pytest.raises(Stopped):
        run(tiny.config("amgc"), tmp_path, StopLater(), tiny.images())
    path = tmp_path / "observed" / "plane.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(files.FileFormatError, match=r"plane\.safetensors' is damaged"):
        resume(tmp_path, dataset=tiny.images())


# ---- Gaussians and margins -----------------------------------------------------------------------------------------------


def dense(session: Session, label: int) -> np.ndarray:
    """Return the covariance (d, d) that the method stores for a class."""
    statistics = session.method.statistics  # type: ignore[attr-defined]
    kept = statistics.covariance
    whole = kept.dense() if hasattr(kept, "dense") else torch.diag_embed(kept) if kept.ndim == 2 else kept
    return whole[statistics.index(label)].double().numpy()


def enlarge(matrix: np.ndarray, how: str, margin: float) -> np.ndarray:
    extra = {"variances": np.diag(np.diag(matrix)), "isotropic": np.eye(len(matrix)) * np.diag(matrix).mean(), "whole": matrix}
    return matrix + margin * extra[how]


@pytest.mark.parametrize("how", ["variances", "isotropic", "whole"])
@pytest.mark.parametrize("form", ["full", "lowrank", "diagonal", "shared"])
def test_gaussians_are_those_of_the_method_in_the_plane(form: str, how: str, tmp_path: Path) -> None:
    config = tiny.config("dbgc", hyper={"margin": 0.4, "covariance": form, "enlarge": how, "rank": 3})
    run(config, tmp_path, dataset=tiny.images())
    session, plane = after(config, tmp_path), written(tmp_path, 3)["plane"]
    parts = tensor_files.read(tmp_path / "observed" / "plane.safetensors", "plane")[1]
    axes, origin = parts["axes"].numpy(), parts["origin"].numpy()
    for label, shown in zip(plane["classes"], plane["gaussians"], strict=True):
        statistics, matrix = session.method.statistics, dense(session, label)
        mean = statistics.mean[statistics.index(label)].numpy()
        np.testing.assert_allclose(shown["mean"], axes @ (mean - origin), rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(shown["covariance"], axes @ matrix @ axes.T, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(shown["enlarged"], axes @ enlarge(matrix, how, 0.4) @ axes.T, rtol=1e-4, atol=1e-7)
    assert [shown["enlarged"] for shown in written(tmp_path, 1)["plane"]["gaussians"]] == [None, None], "new classes"


def test_a_shared_covariance_is_shown_without_a_copy_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from amgc.core.statistics import ClassStatistics

    config = tiny.config("amgc", hyper={"covariance": "shared"})
    run(config, tmp_path, dataset=tiny.images())
    session = after(config, tmp_path)
    monkeypatch.setattr(ClassStatistics, "pooled", lambda self: pytest.fail("a matrix of the features' square"))
    session.method.gaussian(0, torch.eye(2, tiny.DIM, dtype=torch.float64))
    session.method.margins(pairs=True)


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("amgc", {}),
        ("dbgc", {"margin": 0.4, "enlarge": "isotropic"}),
        ("amgc", {"covariance": "lowrank", "rank": 2}),
        ("amgc", {"covariance": "shared"}),
        ("dbgc-sm", {"soft_margin": 0.7}),
        ("dbgc", {"margin": 0.4, "soft_margin": 0.7}),
        ("dblc", {"margin": 0.3}),
        ("amgc-exact", {}),
    ],
)
def test_margins_are_those_of_the_paper_number_by_number(name: str, hyper: dict[str, Any], tmp_path: Path) -> None:
    config = tiny.config(name, hyper=hyper)
    run(config, tmp_path, dataset=tiny.images())
    session, kept = after(config, tmp_path), config.hyper
    softmax, how, soft = (getattr(kept, name, "") for name in ("softmax", "enlarge", "soft_margin"))
    count = 4 if softmax == "local" else 6  # number of rows in the softmax of the old classes 0 to 3
    weight = session.method.head.weight.detach().double().numpy()[:count]
    weight = weight - weight.mean(0)
    own, pairs = np.zeros(6), np.zeros((6, 6))
    for k in range(4):
        matrix = dense(session, k)
        extra = np.diag(enlarge(matrix, how or "variances", kept.margin) - matrix)
        own[k] = sum(extra * weight[k] ** 2) / 2 + (soft or 0.0)
        for j in set(range(count)) - {k}:
            pairs[k, j] = sum(extra * (weight[j] - weight[k]) ** 2) / 2 + (soft or 0.0)
    margins = written(tmp_path, 3)["margins"]
    np.testing.assert_allclose(margins["own"], own, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(margins["pairs"], pairs, rtol=1e-4, atol=1e-9)
    assert min(own[:4]) > 0
    assert written(tmp_path, 1)["margins"] == {"own": [0, 0], "pairs": [[0, 0], [0, 0]]}, "there are no old classes yet"


def test_a_head_that_is_solved_from_the_start_enlarges_task_1_as_well(tmp_path: Path) -> None:
    """As `solve_head` does without new classes."""
    run(tiny.config("amgc-exact", first={"epochs": 0}), tmp_path, dataset=tiny.images())
    assert min(written(tmp_path, 1)["margins"]["own"]) > 0 and written(tmp_path, 1)["plane"]["gaussians"][0]["enlarged"]
    assert written(tmp_path, 2)["margins"]["own"][2:] == [0, 0]


@pytest.mark.any_cpu
@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("dbgc", {}),
        ("sbgc", {"margin": 0.4}),
        ("dbgc", {"margin": 0.4, "enlarge": "whole"}),
        ("amgc", {"margin": 0.0}),
        ("amgc-closed", {}),
        ("lda", {}),
    ],
)
def test_there_are_no_margins_where_the_loss_has_none(name: str, hyper: dict[str, Any], tmp_path: Path) -> None:
    run(tiny.config(name, hyper=hyper), tmp_path, dataset=tiny.images())
    assert written(tmp_path, 3)["margins"] is None


def test_pairs_of_many_classes_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "PAIRED", 4)
    run(tiny.config("amgc"), tmp_path, dataset=tiny.images())
    assert len(written(tmp_path, 2)["margins"]["pairs"]) == 4
    assert written(tmp_path, 3)["margins"]["pairs"] is None and len(written(tmp_path, 3)["margins"]["own"]) == 6


def test_other_methods_show_the_gaussians_that_they_use(tmp_path: Path) -> None:
    """FeCAM's are of transformed features, IL2A's old ones are enlarged by its ratio, PASS's are isotropic."""
    for name in ("fecam", "il2a", "pass", "lda"):
        config = tiny.config(name)
        run(config, tmp_path / name, dataset=tiny.images())
        session, plane = after(config, tmp_path / name), written(tmp_path / name, 3)["plane"]
        axes = tensor_files.read(tmp_path / name / "observed" / "plane.safetensors", "plane")[1]["axes"].numpy()
        label, shown = plane["classes"][0], plane["gaussians"][0]
        expected = float(session.method.radius) ** 2 * np.eye(2) if name == "pass" else axes @ dense(session, label) @ axes.T
        np.testing.assert_allclose(shown["covariance"], expected, rtol=1e-4, atol=1e-7)
        if name == "il2a":
            np.testing.assert_allclose(shown["enlarged"], 2.5 * expected, rtol=1e-4, atol=1e-7)
        else:
            assert shown["enlarged"] is None
    session = after(tiny.config("fecam"), tmp_path / "fecam")
    features, labels = (torch.cat(part) for part in zip(*session.features.extract(session.stream.test(2)), strict=True))
    parts = tensor_files.read(tmp_path / "fecam" / "observed" / "plane.safetensors", "plane")[1]
    plane = written(tmp_path / "fecam", 3)
    rows = features[labels == plane["plane"]["classes"][0]].double().sqrt()  # behind a ReLU
    np.testing.assert_allclose(plane["plane"]["points"][0], (rows - parts["origin"]) @ parts["axes"].T, rtol=1e-4, atol=1e-6)


# ---- reading it back -------------------------------------------------------------------------------------------------------


def test_the_report_reads_what_the_engine_writes(tmp_path: Path) -> None:
    run(tiny.config("amgc"), tmp_path, dataset=tiny.images())
    record = load_run(tmp_path)
    seen = load_observed(record)
    assert [one.task for one in seen] == [0, 1, 2]
    last, text = seen[-1], written(tmp_path, 3)
    assert [list(cell) for cell in last.confusion] == text["confusion"]
    assert last.margins and list(last.margins.own) == text["margins"]["own"]
    assert (
        last.plane and last.plane.gaussians[0] and list(last.plane.gaussians[0].mean) == text["plane"]["gaussians"][0]["mean"]
    )
    assert all(peak and peak > 1e7 for peak in record.peak_bytes) and len(record.peak_bytes) == 3


def test_methods_that_do_not_remember_gaussians_show_points_alone(tmp_path: Path) -> None:
    assert not hasattr(find("ssre").kind, "gaussian")
    run(tiny.config("ssre"), tmp_path, dataset=tiny.images())
    plane = written(tmp_path, 3)["plane"]
    assert plane["gaussians"] == [None, None] and len(plane["points"][0]) == tiny.TESTS
