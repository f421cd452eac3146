"""`--feature-cache` is for networks that do not train only."""

from __future__ import annotations

from pathlib import Path

import tiny

from amgc.engine.run import run


def test_a_frozen_network_gives_the_same_run_with_a_cache_and_from_it(tmp_path: Path) -> None:
    still = {"first": {"epochs": 0}}
    plain = run(tiny.config("amgc-exact", **still), tmp_path / "plain", dataset=tiny.images())
    cached = tiny.config("amgc-exact", machine={"feature_cache": str(tmp_path / "cache")}, **still)
    first = run(cached, tmp_path / "first", dataset=tiny.images())
    kept = sorted((tmp_path / "cache").iterdir())
    again = run(cached, tmp_path / "again", dataset=tiny.images())
    assert len(kept) == 2 * len(plain)  # training and test images of every task
    assert sorted((tmp_path / "cache").iterdir()) == kept
    assert tiny.untimed(plain) == tiny.untimed(first) == tiny.untimed(again)


def test_features_of_a_network_that_trains_are_not_cached(tmp_path: Path) -> None:
    config = tiny.config("finetune", machine={"feature_cache": str(tmp_path / "cache")})
    run(config, tmp_path / "run", dataset=tiny.images())
    assert not (tmp_path / "cache").exists()
