"""`--feature-cache` is for networks that do not train only."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny

from amgc.engine import features
from amgc.engine.run import resume, run
from amgc.engine.watch import Stopped, Watch


def test_a_frozen_network_gives_the_same_run_with_a_cache_and_from_it(tmp_path: Path) -> None:
    still = {"first": {"epochs": 0}}
    plain = run(tiny.config("amgc-exact", **still), tmp_path / "plain", dataset=tiny.images())
    cached = tiny.config("amgc-exact", machine={"feature_cache": str(tmp_path / "cache")}, **still)
    first = run(cached, tmp_path / "first", dataset=tiny.images())
    kept = sorted((tmp_path / "cache").iterdir())
    again = run(cached, tmp_path / "again", dataset=tiny.images())
    assert len(kept) == 2 * len(tiny.images().class_names)  # training and test images of every class
    assert sorted((tmp_path / "cache").iterdir()) == kept
    assert tiny.untimed(plain) == tiny.untimed(first) == tiny.untimed(again)


@pytest.mark.parametrize("change", [{"tasks": 2}, {"natural_order": True}])
def test_runs_with_other_tasks_or_another_order_of_classes_read_the_same_files(change: dict[str, Any], tmp_path: Path) -> None:
    still, machine = {"first": {"epochs": 0}}, {"feature_cache": str(tmp_path / "cache")}
    run(tiny.config("amgc-exact", machine=machine, **still), tmp_path / "first", dataset=tiny.images())
    kept = sorted((tmp_path / "cache").iterdir())
    plain = run(tiny.config("amgc-exact", **still, **change), tmp_path / "plain", dataset=tiny.images())
    cached = run(tiny.config("amgc-exact", machine=machine, **still, **change), tmp_path / "cached", dataset=tiny.images())
    assert sorted((tmp_path / "cache").iterdir()) == kept
    assert tiny.untimed(cached) == tiny.untimed(plain)


def test_features_of_a_network_that_trains_are_not_cached(tmp_path: Path) -> None:
    config = tiny.config("finetune", machine={"feature_cache": str(tmp_path / "cache")})
    run(config, tmp_path / "run", dataset=tiny.images())
    assert not (tmp_path / "cache").exists()


def test_a_run_that_fills_the_cache_stops_between_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny.config("amgc-exact", first={"epochs": 0}, machine={"feature_cache": str(tmp_path / "cache")})
    expected = run(config, tmp_path / "whole", dataset=tiny.images())
    shutil.rmtree(tmp_path / "cache")
    watch, passed, whole = Watch(), [], features.cached_features

    def stopping(network: Any, images: Any, *, preprocess: Any, directory: str) -> Any:
        def stopped(batch: Any) -> Any:
            passed.append(len(batch))
            watch.stop = True  # Ctrl-C during the first batch
            return preprocess(batch)

        return whole(network, images, preprocess=stopped, directory=directory)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(features, "cached_features", stopping)
        run(config, tmp_path / "run", watch, dataset=tiny.images())
    assert len(passed) == 1 and not (tmp_path / "cache").exists()
    assert tiny.untimed(resume(tmp_path / "run", dataset=tiny.images())) == tiny.untimed(expected)
