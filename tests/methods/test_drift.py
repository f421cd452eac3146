"""SDC, ADC, LDC, DPCR and AMGC with drift compensation, against their definitions in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from amgc.engine.run import run
from amgc.methods.amgc_drift import AMGCDrift
from amgc.methods.compensated import Compensated
from amgc.methods.contract import Task
from amgc.methods.registry import find

pytestmark = pytest.mark.cpus


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def observed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[dict[str, Any]]:
    """Run a method. Return for each task its images' features before and after training, and the method around `end`."""
    seen: list[dict[str, Any]] = []
    kind = find(name).kind
    whole_collect, whole_end = getattr(kind, "collect", None), kind.end

    def note(self: Any, task: Task, images: Any, generator: torch.Generator) -> None:
        now: dict[str, Any] = {"labels": images.labels.numpy(), "new": images.features(self.network).double().numpy()}
        now["old"] = None if self.old is None else images.features(self.old).double().numpy()
        now["before"] = kept(self)
        seen.append(now)
        if whole_collect is not None:
            whole_collect(self, task, images, generator)

    def end(self: Any, task: Task, features: Any, generator: torch.Generator) -> None:
        seen[-1]["projector"] = getattr(self, "projector", None)
        whole_end(self, task, features, generator)
        seen[-1] |= {"after": kept(self), "scores": self.scores(torch.from_numpy(seen[-1]["new"]).float()).detach().numpy()}

    tiny.variant(monkeypatch, name, collect=note, end=end)
    run(tiny.config(name, later={"extractor_lr": 0.05}, **changes), tmp_path, dataset=tiny.images())
    return seen


def kept(method: Any) -> dict[str, np.ndarray]:
    if isinstance(method, Compensated):
        return {"mean": method.means.numpy().copy()}
    made = method.statistics
    order = [made.index(label) for label in range(len(made))]
    return {"mean": made.mean[order].numpy(), "covariance": made.covariance[order].double().numpy()}


def test_sdc_moves_the_means_of_unit_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for now in observed("sdc", tmp_path, monkeypatch):
        moved = now["before"]["mean"]
        if now["old"] is not None:
            old, new = unit(now["old"]), unit(now["new"])
            weights = np.exp(-np.square(old[None] - moved[:, None]).sum(2) / (2 * 0.3**2))
            moved = moved + weights / weights.sum(1, keepdims=True) @ (new - old)
        fresh = [unit(now["new"])[now["labels"] == label].mean(0) for label in np.unique(now["labels"])]
        expected = np.concatenate([moved, fresh])
        np.testing.assert_allclose(now["after"]["mean"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(now["scores"], unit(now["new"]) @ unit(expected).T, atol=1e-5)


def test_ldc_maps_old_means_with_the_trained_projector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observed("ldc", tmp_path, monkeypatch)
    assert seen[-1]["old"] is not None
    for now in seen[1:]:
        weight = now["projector"].weight.detach().double().numpy()
        np.testing.assert_allclose(
            now["after"]["mean"][: len(now["before"]["mean"])], now["before"]["mean"] @ weight.T, rtol=1e-6
        )


def test_with_enough_steps_the_projector_of_ldc_is_the_least_squares_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without augmentation: full batches of Adam come close to the only minimum."""
    second = replace(tiny.config("ldc").hyper.second, epochs=400, batch_size=18, augment=False, head_lr=0.01)
    now = observed("ldc", tmp_path, monkeypatch, tasks=3, hyper={"second": second, "initial": "identity"})[1]
    matrix = now["projector"].weight.detach().double().numpy().T
    best = np.linalg.lstsq(now["old"], now["new"], rcond=None)[0]
    left, least, at_first = (np.square(now["old"] @ some - now["new"]).mean() for some in (matrix, best, np.eye(8)))
    assert left < least + 0.05 * (at_first - least)


def test_adc_moves_a_mean_by_the_drift_of_images_that_were_changed_towards_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without steps of an attack, the images stay as they are; then numpy can do the rest."""
    for now in observed("adc", tmp_path, monkeypatch, hyper={"steps": 0, "nearest": 4}):
        if now["old"] is None:
            continue
        means, moved = now["before"]["mean"], []
        for k, mean in enumerate(means):
            nearest = np.argsort(np.linalg.norm(now["old"] - mean, axis=1))[:4]
            hit = np.linalg.norm(now["old"][nearest][:, None] - means[None], axis=2).argmin(1) == k
            chosen = nearest[hit] if hit.any() else nearest
            moved.append(mean + (now["new"] - now["old"])[chosen].mean(0))
        np.testing.assert_allclose(now["after"]["mean"][: len(means)], moved, rtol=1e-4, atol=1e-5)


def test_the_attacks_of_adc_approach_the_old_mean_within_the_range_of_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, checked = find("adc").kind, []
    whole: Callable[..., torch.Tensor] = kind.attacked  # type: ignore[attr-defined]

    def attacked(self: Any, images: Any, shown: torch.Tensor, mean: torch.Tensor, *rest: Any) -> torch.Tensor:
        changed = whole(self, images, shown, mean, *rest)
        with torch.no_grad():
            before, after = ((self.old(some) - mean.float()).norm(dim=1).mean() for some in (shown, changed))
        checked.append(float(after / before))
        low, high = rest[-2:]
        assert float(changed.min()) >= low and float(changed.max()) <= high and not torch.equal(shown, changed)
        return changed

    monkeypatch.setattr(kind, "attacked", attacked)
    run(tiny.config("adc", hyper={"step": 2.0}), tmp_path, dataset=tiny.images())
    assert len(checked) == 2 + 4 and np.mean(checked) < 1


def test_dpcr_maps_moments_and_solves_ridge_regression_from_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for now in observed("dpcr", tmp_path, monkeypatch, hyper={"ridge": 2.0}):
        moments, sums = [], []
        for mean, covariance in zip(now["before"]["mean"], now["before"].get("covariance", []), strict=True):
            moment, total = 8 * covariance + 9 * np.outer(mean, mean), 9 * mean
            if now["old"] is not None:
                old, new = now["old"], now["new"]
                values, vectors = np.linalg.eigh(moment)
                range_of = vectors[:, values > 1e-9 * values[-1]]
                matrix = np.linalg.solve(old.T @ old + 1e-9 * np.eye(8), old.T @ new) @ range_of @ range_of.T
                moment, total = matrix.T @ moment @ matrix, total @ matrix
            moments.append(moment)
            sums.append(total)
        for label in np.unique(now["labels"]):
            rows = now["new"][now["labels"] == label]
            moments.append(rows.T @ rows)
            sums.append(rows.sum(0))
        weight = unit(np.linalg.solve(sum(moments) + 2.0 * np.eye(8), np.array(sums).T).T)
        np.testing.assert_allclose(now["scores"], now["new"] @ weight.T, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("compensation", ["none", "mean", "linear"])
def test_amgc_follows_the_drift_as_it_is_told(compensation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observed("amgc-drift", tmp_path, monkeypatch, hyper={"compensation": compensation, "ridge": 0.1})
    now = seen[1]
    before, after = now["before"], {name: value[:2] for name, value in now["after"].items()}
    if compensation == "none":
        expected = before
    elif compensation == "mean":
        squares = np.square(before["mean"][:, None] - now["old"][None]).sum(2)
        weights = np.exp(-squares / (2 * squares.mean()))
        moved = before["mean"] + weights / weights.sum(1, keepdims=True) @ (now["new"] - now["old"])
        expected = {"mean": moved, "covariance": before["covariance"]}
    else:
        old, new = now["old"], now["new"]
        ridge = 1e-3 * np.square(old).sum() / 8
        matrix = np.eye(8) + np.linalg.solve(old.T @ old + ridge * np.eye(8), old.T @ (new - old))
        expected = {"mean": before["mean"] @ matrix, "covariance": matrix.T @ before["covariance"] @ matrix}
    for name, value in expected.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-3, atol=1e-4 * np.abs(value).max())


def test_without_drift_amgc_is_the_exact_solution(tmp_path: Path) -> None:
    """On a network that is frozen after task 1."""
    frozen: Any = {"later": {"extractor_lr": 0.0, "epochs": 0}, "hyper": {"margin": 0.4, "balance": "per_class", "ridge": 0.1}}
    run(tiny.config("amgc-drift", **frozen), tmp_path / "one", dataset=tiny.images())
    start = {"machine": {"start": str(tmp_path / "one")}, "first": vars(tiny.config("amgc-drift").hyper.first)}
    run(tiny.config("amgc-exact", **frozen, **start), tmp_path / "other", dataset=tiny.images())
    one, other = (tiny.saved(tmp_path / name)[1] for name in ("one", "other"))
    torch.testing.assert_close(one["method/solved/weight"], other["method/head.weight"], rtol=1e-4, atol=1e-5)
    assert issubclass(AMGCDrift, find("lwf").kind)
